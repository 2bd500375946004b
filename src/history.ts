import type { QueryResult } from './postgres/driver.ts';
import { schemaVersion } from './claim.ts';
import { toRecord } from './postgres/record.ts';
import type { Session } from './postgres/session.ts';
import type { RunRecord, SkipReason, Status } from './run.ts';

/**
 * Reading what became of deliveries. Newest first; pages by cursor, since run ids grow with time.
 *
 * In lists a large output is cut, and said to be, and an error has no stack: 200 records of some 500 KB each would
 * not fit an answer of Lambda's, which ends at 6 MB. `findRun` has everything.
 */

const longestListed = 4_096;

const listed = `cronce.record(r) || jsonb_build_object(
  'params', ${listedJson('r.params')}, 'output', ${listedJson('r.output')},
  'error', CASE WHEN r.error IS NOT NULL THEN jsonb_strip_nulls(jsonb_build_object(
    'name', left(r.error ->> 'name', 200), 'message', left(r.error ->> 'message', 1000), 'code', r.error -> 'code')) END)`;

function listedJson(column: string): string {
  const cut = `jsonb_build_object('cut', octet_length(${column}::text) || ' bytes; the run itself has it whole')`;
  return `CASE WHEN octet_length(${column}::text) > ${longestListed} THEN ${cut} ELSE ${column} END`;
}

export interface RunFilter {
  readonly job?: string | undefined;
  readonly slot?: string | undefined;
  readonly status?: Status | undefined;
  readonly reason?: SkipReason | undefined;
  /** Only runs before this id: the last one of the page before. */
  readonly before?: string | undefined;
  /** 1 to 201: one more than a page holds tells whether another follows. */
  readonly limit: number;
}

export async function findRuns(session: Session, filter: RunFilter): Promise<RunRecord[]> {
  const result = await session.query(
    `SELECT ${listed} AS run FROM cronce.run r
     WHERE ($1::text IS NULL OR r.job = $1) AND ($2::text IS NULL OR r.slot = $2)
       AND ($3::text IS NULL OR r.status = $3) AND ($4::text IS NULL OR r.skip_reason = $4)
       AND ($5::uuid IS NULL OR r.id < $5)
     ORDER BY r.id DESC LIMIT $6`,
    [filter.job, filter.slot, filter.status, filter.reason, filter.before, filter.limit].map(
      (value) => value ?? null,
    ),
  );
  return records(result);
}

export async function findRun(session: Session, id: string): Promise<RunRecord | undefined> {
  const result = await session.query('SELECT cronce.record(r) AS run FROM cronce.run r WHERE r.id = $1', [
    id,
  ]);
  return records(result)[0];
}

/** The last few runs of each job, newest first. */
export async function latestRuns(
  session: Session,
  jobs: readonly string[],
  each: number,
): Promise<Map<string, RunRecord[]>> {
  const result = await session.query(
    `SELECT ${listed} AS run FROM unnest($1::text[]) AS j (name)
     CROSS JOIN LATERAL (SELECT * FROM cronce.run r WHERE r.job = j.name ORDER BY r.id DESC LIMIT $2) r
     ORDER BY r.job, r.id DESC`,
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
  return new Map((rows as StoredState[]).map((state) => [state.name, { ...state, ...isoTimes(state) }]));
}

/** Both drivers answer a timestamptz as a Date. */
type StoredState = Omit<JobState, 'firstSeenAt' | 'pausedAt'> &
  Readonly<{ firstSeenAt: Date; pausedAt: Date | null }>;

function isoTimes({ firstSeenAt, pausedAt }: StoredState): Pick<JobState, 'firstSeenAt' | 'pausedAt'> {
  return { firstSeenAt: firstSeenAt.toISOString(), pausedAt: pausedAt?.toISOString() ?? null };
}

/** @throws {SchemaMismatch} where the schema is missing, too old, or newer than this code understands */
export async function checkSchema(session: Session): Promise<void> {
  await session.query('SELECT cronce.require_schema($1)', [schemaVersion]);
}

function records(result: QueryResult): RunRecord[] {
  return (result.rows as { run: RunRecord }[]).map(({ run }) => toRecord(run));
}
