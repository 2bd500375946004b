/**
 * What each query costs where the history is long. Counted and not timed: a claim, a sweep, a page or the API never reads
 * `cronce.run` as a whole, neither in its own order nor in an index's.
 */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { coordinate } from '../../src/coordinate.ts';
import type { Job } from '../../src/job.ts';
import { Session } from '../../src/postgres/session.ts';
import type { Sink } from '../../src/sinks/sink.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { bulkJobs as jobs, fillHistory, getFrom } from '../support/history.ts';
import { sweep } from '../support/rivals.ts';

const rows = 1_000_000;
const day = 86_400_000;
const task = jobs[0] as Job;
const taker: Sink = { name: 'bus', send: async (all) => Promise.resolve(new Set(all.map(({ id }) => id))) };

let db: TestDatabase;
beforeAll(async () => {
  db = await freshDatabase();
  await fillHistory(db, { rows, days: 29, jobs: jobs.length });
}, 300_000);
afterAll(async () => db.drop());

interface Reads {
  /** Of the table in its own order. */
  readonly scans: number;
  /** Entries of its indexes. */
  readonly entries: number;
}

/** What the sessions that ended meanwhile have read; each tells the server when it ends. */
async function readsOf(work: () => Promise<unknown>): Promise<Reads> {
  await db.assertNoLeaks(); // of what came before, too
  const before = await reads();
  await work();
  await db.assertNoLeaks();
  const after = await reads();
  return { scans: after.scans - before.scans, entries: after.entries - before.entries };
}

async function reads(): Promise<Reads> {
  const [row] = await db.query(
    `SELECT pg_stat_clear_snapshot(), seq_scan::int AS scans,
       (SELECT sum(idx_tup_read)::int FROM pg_stat_user_indexes WHERE relid = 'cronce.run'::regclass) AS entries
     FROM pg_stat_user_tables WHERE relid = 'cronce.run'::regclass`,
  );
  return { scans: Number(row?.['scans']), entries: Number(row?.['entries']) };
}

async function get(path: string): Promise<void> {
  const response = await getFrom(db, path);
  expect(response.status, await response.clone().text()).toBe(200);
}

/** The test's own read of the table; told to the server at once, where it would else be counted some time later. */
async function someRow(where: string): Promise<Record<string, unknown>> {
  const [row] = await db.query(`SELECT * FROM cronce.run WHERE deployment = 'default' AND ${where} LIMIT 1`);
  await db.query('SELECT pg_stat_force_next_flush()');
  return row ?? {};
}

const deliver = async (slot: string, overrides: Parameters<typeof deliveryFor>[2] = {}, options = {}) =>
  coordinate(deliveryFor(task, slot, overrides), 60_000, coordinatorOn(db.url, options));

const claims: [string, () => Promise<unknown>][] = [
  ['a run, from its claim to its stamp', () => deliver('2026-11-29T12:00:00Z')],
  ['… with a sink', () => deliver('2026-11-29T13:00:00Z', {}, { sinks: [taker] })],
  ['a duplicate', () => deliver('2026-11-29T12:00:00Z')],
  ['a slot off the schedule', () => deliver('2026-11-29T12:01:00Z', { offSchedule: true })],
  ['a guessed slot', () => deliver('2026-11-29T14:00:00Z', { slotGuessed: true, deliveryId: 'a-request' })],
  ['a run by hand', () => deliver('2026-11-29T15:00:00Z', { slot: 'manual:1', scheduledForGuessed: true })],
  ['a slot that is too old', () => deliver('2020-11-29T15:00:00Z', {}, { retentionMs: 30 * day })],
];

const views = [
  '/',
  '/jobs',
  '/jobs/bulk-3',
  '/runs',
  '/runs?limit=200',
  '/runs?job=bulk-2',
  '/runs?job=nobody',
  '/runs?status=running',
  '/runs?status=lost',
  '/runs?status=missed&job=bulk-1',
  '/runs?status=skipped',
  '/runs?reason=off_schedule',
  '/runs?reason=duplicate&job=bulk-5',
  '/runs?slot=nothing',
  '/runs?slot=nothing&job=bulk-2&status=failed',
];

it.each(claims)('%s reads a handful of it', async (_what, work) => {
  const cost = await readsOf(work);
  expect(cost.scans).toBe(0);
  expect(cost.entries).toBeLessThan(500);
});

it.each(views)('GET %s reads what it shows', async (path) => {
  const cost = await readsOf(async () => get(path));
  expect(cost.scans).toBe(0);
  expect(cost.entries).toBeLessThan(20_000);
});

it('GET /runs by a cursor, and one run, read what they show', async () => {
  const { id, slot } = await someRow(
    `id < (SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY id) FROM cronce.run)`,
  );
  for (const path of [
    `/runs?before=${String(id)}`,
    `/runs/${String(id)}`,
    `/runs?slot=${encodeURIComponent(String(slot))}`,
  ]) {
    const cost = await readsOf(async () => get(path));
    expect([path, cost.scans]).toEqual([path, 0]);
    expect(cost.entries).toBeLessThan(20_000);
  }
});

it('a cancel, and a pause, read no more than their run', async () => {
  const { id } = await someRow(`status = 'succeeded'`);
  const cost = await readsOf(async () => {
    const session = await Session.open(targetOf(db.url));
    await session.send(
      `SELECT cronce.request_cancel('${String(id)}', 'ann'), cronce.pause_job('x', 'ann', NULL, NULL)`,
    );
    await session.close();
  });
  expect(cost).toMatchObject({ scans: 0 });
  expect(cost.entries).toBeLessThan(100);
});

interface Done {
  readonly pruned: number;
}

async function pass(options: Parameters<typeof sweep>[2] = {}): Promise<Done> {
  const { own } = await sweep(db, jobs, options);
  expect(own, JSON.stringify(own.error)).toMatchObject({ status: 'succeeded' });
  return own.output as unknown as Done;
}

it('a sweep with nothing to do reads what is recent', async () => {
  const first = await readsOf(pass); // knows the schedules
  expect(first.scans).toBe(0);
  const cost = await readsOf(async () => expect(await pass()).toMatchObject({ pruned: 0 }));
  expect(cost.scans).toBe(0);
  expect(cost.entries).toBeLessThan(20_000);
});

it('a sweep that prunes reads what it deletes, and not once more what it has deleted', async () => {
  let pruned = 0;
  const cost = await readsOf(async () => ({ pruned } = await pass({ retentionMs: 29 * day * 0.98 })));
  expect(pruned).toBeGreaterThan(15_000);
  expect(cost.scans).toBe(0);
  expect(cost.entries).toBeLessThan(pruned * 6);
});

it('a backlog of the outbox is taken in its order, and not sorted anew for each batch', async () => {
  await db.query(
    `UPDATE cronce.run SET published_at = NULL, publish_after = now() - interval '1 h' WHERE id IN (
       SELECT id FROM cronce.run WHERE deployment = 'default' ORDER BY id LIMIT 50000)`,
  );
  await db.query('ANALYZE cronce.run');
  const cost = await readsOf(async () => deliver('2026-11-29T16:00:00Z', {}, { sinks: [taker] }));
  expect(cost.scans).toBe(0);
  expect(cost.entries).toBeLessThan(500);
});
