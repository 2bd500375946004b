/**
 * What a long history costs: the same acts on a deployment with a long one and on one with a short one, side by side.
 * What is asked for is there in both in the same number, since who is shown more waits for more.
 */
import { coordinate } from '../../src/coordinate.ts';
import { findRuns, type RunFilter } from '../../src/operate/history.ts';
import type { Job } from '../../src/job.ts';
import { Session } from '../../src/postgres/session.ts';
import { outcomes, skipReasons, type RunRecord } from '../../src/run.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { bulkJobs as jobs, fillHistory, getFrom } from '../support/history.ts';
import { sweep } from '../support/rivals.ts';
import { interleave, ratio, spreadOf, type Spread } from './pairs.ts';
import type { Stand } from './stand.ts';
import { deliver } from './ways.ts';

export interface History {
  readonly rows: { readonly short: number; readonly long: number };
  /** Of the long history, its indexes too. */
  readonly bytesARun: number;
  /** Of the write-ahead log, for a run from its claim to its stamp. */
  readonly walBytesARun: number;
  readonly lines: readonly HistoryLine[];
}

export interface HistoryLine {
  /** A filter of the API by itself, on a session that is open and warm; any other act from connecting to having closed. */
  readonly kind: 'filter' | 'whole';
  readonly what: string;
  readonly ratio: Spread;
  readonly longMs: Spread;
  readonly shortMs: Spread;
}

const shortRows = 1_000;
const days = 29;
/** So many of each kind that occurs are there even in the short history; of a single job, one. */
const few = 5;

export async function history(stand: Stand, pairs: number, longRows: number): Promise<History> {
  const [long, short] = [await filled(stand, longRows), await filled(stand, shortRows)];
  try {
    const lines = [...(await filters(long, short, pairs)), ...(await wholes(long, short, pairs))];
    const [size] = await long.query(`SELECT pg_total_relation_size('cronce.run')::float8 AS bytes`);
    const bytesARun = Math.round(Number(size?.['bytes']) / longRows);
    const walBytesARun = await walOfARun(long);
    return { rows: { short: shortRows, long: longRows }, bytesARun, walBytesARun, lines };
  } finally {
    await Promise.all([long.drop(), short.drop()]);
  }
}

/** Without the whole pages that the first write after a checkpoint takes along. */
async function walOfARun(db: TestDatabase): Promise<number> {
  const runs = 50;
  const position = async () => {
    const [row] = await db.query(
      `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 AS bytes`,
    );
    return Number(row?.['bytes']);
  };
  const deliverAll = async () => {
    for (let n = 0; n < runs; n++) await deliver(jobs[0] as Job, { target: targetOf(db.url) }, 'succeeded');
    await db.assertNoLeaks();
  };
  await deliverAll(); // touches the pages
  const before = await position();
  await deliverAll();
  return Math.round(((await position()) - before) / runs);
}

async function filled({ serverUrl }: Stand, rows: number): Promise<TestDatabase> {
  const db = await freshDatabase({ serverUrl });
  await fillHistory(db, { rows, days, jobs: jobs.length });
  await db.query('VACUUM ANALYZE cronce.run');
  return db;
}

type Act = (db: TestDatabase) => Promise<unknown>;

async function sideBySide(
  kind: HistoryLine['kind'],
  what: string,
  [long, short]: readonly [() => Promise<unknown>, () => Promise<unknown>],
  pairs: number,
): Promise<HistoryLine> {
  const times = await interleave({ long, short }, pairs);
  const [longMs, shortMs] = [spreadOf(times.long), spreadOf(times.short)];
  return { kind, what, ratio: ratio(times.long, times.short), longMs, shortMs };
}

/** Each status and each reason, most of which never occur, with a job and without. */
function filtersToAsk(): RunFilter[] {
  const kinds: Pick<RunFilter, 'status' | 'reason'>[] = [
    { status: 'running' },
    ...outcomes.map((status) => ({ status })),
    ...skipReasons.map((reason) => ({ reason })),
  ];
  return [
    { limit: 51 },
    { limit: 201 },
    { job: 'nobody', limit: few + 1 },
    { slot: 'nothing', limit: few + 1 },
    ...kinds.map((kind) => ({ ...kind, limit: few + 1 })),
    { job: 'bulk-3', limit: few + 1 },
    ...kinds.map((kind) => ({ job: 'bulk-3', ...kind, limit: 2 })),
  ];
}

async function filters(long: TestDatabase, short: TestDatabase, pairs: number): Promise<HistoryLine[]> {
  const sessions = await Promise.all([long, short].map(async ({ url }) => Session.open(targetOf(url))));
  const [onLong, onShort] = sessions as [Session, Session];
  const lines: HistoryLine[] = [];
  for (const filter of filtersToAsk()) {
    const asks = [async () => findRuns(onLong, filter), async () => findRuns(onShort, filter)] as const;
    lines.push(await sideBySide('filter', wordsOf(filter), asks, pairs));
  }
  await Promise.all(sessions.map((session) => session.close()));
  return lines;
}

function wordsOf({ limit, ...asked }: RunFilter): string {
  const given = Object.entries(asked).flatMap(([name, value]) =>
    value === undefined ? [] : [`${name}=${value}`],
  );
  return [...given, `limit=${limit - 1}`].join(' ');
}

async function wholes(long: TestDatabase, short: TestDatabase, pairs: number): Promise<HistoryLine[]> {
  const acts: [string, Act][] = [
    ['a run', async ({ url }) => deliver(jobs[0] as Job, { target: targetOf(url) }, 'succeeded')],
    ['a duplicate', async ({ url }) => deliverAgain(url)],
    ['GET /', async (db) => get(db, '/')],
    ['GET /jobs', async (db) => get(db, '/jobs')],
    ['GET /jobs/bulk-3', async (db) => get(db, '/jobs/bulk-3')],
    ['a sweep with nothing to do', async (db) => sweep(db, jobs)],
  ];
  for (const db of [long, short]) {
    await deliverAgain(db.url, 'succeeded'); // of which the others are duplicates
    await sweep(db, jobs); // knows the schedules from then on
  }
  const lines: HistoryLine[] = [];
  for (const [what, act] of acts)
    lines.push(await sideBySide('whole', what, [async () => act(long), async () => act(short)], pairs));
  return lines;
}

/** Of a slot that has succeeded, but for the first. */
async function deliverAgain(url: string, expected: RunRecord['status'] = 'skipped'): Promise<void> {
  const { status } = await coordinate(
    deliveryFor(jobs[1] as Job, '2026-11-29T12:00:00Z'),
    60_000,
    coordinatorOn(url),
  );
  if (status !== expected) throw new Error(`the delivery ${status}`);
}

async function get(db: TestDatabase, path: string): Promise<void> {
  const response = await getFrom(db, path);
  if (response.status !== 200) throw new Error(`GET ${path} answers ${response.status}`);
  await response.text();
}
