import { schemaVersion } from '../path/claim.ts';
import { ask, jsonText, quoted } from '../postgres/call.ts';
import { isoTime, toRecord } from '../postgres/record.ts';
import type { Session } from '../postgres/session.ts';
import {
  outcomes,
  skipReasons,
  unnamedDeployment,
  type RunRecord,
  type SkipReason,
  type Status,
} from '../run.ts';

/**
 * Reading what became of a deployment's deliveries. Newest first; pages by cursor, since run ids grow with time.
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
  /** Whose; service and stage. */
  readonly deployment?: string | undefined;
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
  const { deployment = unnamedDeployment, slot, limit } = filter;
  const before = filter.before === undefined ? 'true' : `r.id < ${jsonText(session, filter.before)}::uuid`;
  const words = wordsOf(filter);
  // A slot has few runs: all of them, before anything else is asked.
  const rows =
    slot === undefined
      ? newest(kindsOf(session, deployment, words, filter.job), { session, deployment, before, limit })
      : `SELECT r.* FROM (SELECT r.* FROM cronce.run r WHERE ${equal(session, 'deployment', deployment)}
           AND ${equal(session, 'slot', slot)} AND ${equal(session, 'job', filter.job)} OFFSET 0) r
         WHERE ${before} AND ${outcome} = ANY (${texts(session, words)}) ORDER BY r.id DESC LIMIT ${limit}`;
  return records(session, rows, listed);
}

/** What became of a delivery, or why it was turned away: in one word, as the index `run_by_outcome` has it. */
const outcome = 'coalesce(r.skip_reason, r.status)';
const allWords: readonly string[] = [
  'running',
  ...outcomes.filter((one) => one !== 'skipped'),
  ...skipReasons,
];

function wordsOf({ status, reason }: Pick<RunFilter, 'status' | 'reason'>): readonly string[] {
  const isSkip = (word: string) => skipReasons.some((one) => one === word);
  return allWords
    .filter((word) => status === undefined || word === status || (status === 'skipped' && isSkip(word)))
    .filter((word) => reason === undefined || word === reason);
}

/**
 * Each job with each word that its runs may have: k (job, word). Jobs that have runs, found by the index from one to the
 * next; however long the history is, no list reads more of it than what it shows of each kind.
 */
function kindsOf(session: Session, deployment: string, words: readonly string[], job?: string): string {
  const ours = equal(session, 'deployment', deployment);
  const jobs =
    job === undefined
      ? `(WITH RECURSIVE j (job) AS (
           SELECT min(r.job) FROM cronce.run r WHERE ${ours}
           UNION ALL
           SELECT (SELECT min(r.job) FROM cronce.run r WHERE ${ours} AND r.job > j.job) FROM j WHERE j.job IS NOT NULL)
         SELECT j.job FROM j WHERE j.job IS NOT NULL)`
      : `(SELECT ${jsonText(session, job)})`;
  return `${jobs} j (job) CROSS JOIN unnest(${texts(session, words)}) w (word)`;
}

interface Newest {
  readonly session: Session;
  readonly deployment: string;
  readonly before: string;
  readonly limit: number;
}

/** Of all these kinds together the last few runs: the last few of each are looked at, and no more. */
function newest(kinds: string, { session, deployment, before, limit }: Newest): string {
  return `SELECT r.* FROM (
      SELECT f.id FROM ${kinds} CROSS JOIN LATERAL (
        SELECT r.id FROM cronce.run r WHERE ${equal(session, 'deployment', deployment)} AND r.job = j.job
          AND ${outcome} = w.word AND ${before} ORDER BY r.id DESC NULLS LAST LIMIT ${limit}) f
      ORDER BY f.id DESC LIMIT ${limit}) n
    CROSS JOIN LATERAL (SELECT r.* FROM cronce.run r WHERE r.id = n.id LIMIT 1) r`;
}

export async function findRun(
  session: Session,
  id: string,
  deployment: string = unnamedDeployment,
): Promise<RunRecord | undefined> {
  const ours = equal(session, 'deployment', deployment);
  const one = `SELECT r.* FROM cronce.run r WHERE r.id = ${jsonText(session, id)}::uuid AND ${ours}`;
  return (await records(session, one, 'cronce.record(r)'))[0];
}

/** The last few runs of each job, newest first. */
export async function latestRuns(
  session: Session,
  jobs: readonly string[],
  each: number,
  deployment: string = unnamedDeployment,
): Promise<Map<string, RunRecord[]>> {
  const kinds = `(SELECT a.name) j (job) CROSS JOIN unnest(${texts(session, allWords)}) w (word)`;
  const rows = `SELECT r.* FROM unnest(${texts(session, jobs)}) a (name)
    CROSS JOIN LATERAL (${newest(kinds, { session, deployment, before: 'true', limit: each })}) r`;
  const all = await records(session, rows, listed);
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
export async function jobStates(
  session: Session,
  deployment: string = unnamedDeployment,
): Promise<Map<string, JobState>> {
  const states = await ask<JobState[]>(
    session,
    `SELECT coalesce(jsonb_agg(jsonb_build_object('name', j.name, 'firstSeenAt', j.first_seen_at,
       'pausedAt', j.paused_at, 'pausedBy', j.paused_by, 'pauseReason', j.pause_reason)), '[]')
     FROM cronce.job j WHERE j.deployment = ${jsonText(session, deployment)}`,
  );
  return new Map(states.map((state) => [state.name, withIsoTimes(state)]));
}

/** As stored they have the session's time zone. */
function withIsoTimes(state: JobState): JobState {
  const { firstSeenAt, pausedAt } = state;
  return { ...state, firstSeenAt: isoTime(firstSeenAt), pausedAt: pausedAt && isoTime(pausedAt) };
}

/** @throws {SchemaMismatch} where the schema is missing, too old, or newer than this code understands */
export async function checkSchema(session: Session): Promise<void> {
  await ask(session, `cronce.require_schema(${schemaVersion})`);
}

/** @param shown what is shown of each row r of `rows`, which come newest first */
async function records(session: Session, rows: string, shown: string): Promise<RunRecord[]> {
  const all = `SELECT coalesce(jsonb_agg(${shown} ORDER BY r.id DESC), '[]') FROM (${rows}) r`;
  return (await ask<RunRecord[]>(session, all)).map(toRecord);
}

function equal(session: Session, column: string, value: string | undefined): string {
  return value === undefined ? 'true' : `r.${column} = ${jsonText(session, value)}`;
}

function texts(session: Session, all: readonly string[]): string {
  return `ARRAY(SELECT jsonb_array_elements_text(${quoted(session, { json: all })}))`;
}
