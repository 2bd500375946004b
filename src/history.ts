import type { QueryResult } from 'pg';
import { toRecord } from './postgres/record.ts';
import type { Session } from './postgres/session.ts';
import type { RunRecord, SkipReason, Status } from './run.ts';

/** Reading what became of deliveries. Newest first; pages by cursor, since run ids grow with time. */

export interface RunFilter {
  readonly job?: string;
  readonly slot?: string;
  readonly status?: Status;
  readonly reason?: SkipReason;
  /** Only runs before this id: the last one of the page before. */
  readonly before?: string;
  /** 1 to 200. */
  readonly limit: number;
}

export async function findRuns(session: Session, filter: RunFilter): Promise<RunRecord[]> {
  const result = await session.query(
    `SELECT cronce.record(r) AS run FROM cronce.run r
     WHERE ($1::text IS NULL OR r.job = $1) AND ($2::text IS NULL OR r.slot = $2)
       AND ($3::text IS NULL OR r.status = $3) AND ($4::text IS NULL OR r.skip_reason = $4)
       AND ($5::uuid IS NULL OR r.id < $5)
     ORDER BY r.id DESC LIMIT $6`,
    [filter.job, filter.slot, filter.status, filter.reason, filter.before, filter.limit].map((value) => value ?? null),
  );
  return records(result);
}

export async function findRun(session: Session, id: string): Promise<RunRecord | undefined> {
  const result = await session.query('SELECT cronce.record(r) AS run FROM cronce.run r WHERE r.id = $1', [id]);
  return records(result)[0];
}

/** The last few runs of each job, newest first. */
export async function latestRuns(session: Session, jobs: readonly string[], each: number): Promise<Map<string, RunRecord[]>> {
  const result = await session.query(
    `SELECT cronce.record(r) AS run FROM unnest($1::text[]) AS j (name)
     CROSS JOIN LATERAL (SELECT * FROM cronce.run r WHERE r.job = j.name ORDER BY r.id DESC LIMIT $2) r`,
    [jobs, each],
  );
  const all = records(result);
  return new Map(jobs.map((name) => [name, all.filter(({ job }) => job === name)]));
}

export interface JobState {
  readonly name: string;
  readonly firstSeenAt: string;
  readonly pausedAt: string | null;
  readonly pausedBy: string | null;
  readonly pauseReason: string | null;
}

/** What the database knows of jobs; a job that was never delivered is not among them. */
export async function jobStates(session: Session): Promise<Map<string, JobState>> {
  const { rows } = await session.query(
    `SELECT name, first_seen_at AS "firstSeenAt", paused_at AS "pausedAt", paused_by AS "pausedBy",
            pause_reason AS "pauseReason" FROM cronce.job`,
  );
  return new Map((rows as JobState[]).map((state) => [state.name, state]));
}

function records(result: QueryResult): RunRecord[] {
  return (result.rows as { run: RunRecord }[]).map(({ run }) => toRecord(run));
}
