/**
 * What pruning costs, and what it does to claims meanwhile: `npm run bench:prune [-- --rows N]`. A measurement and no test;
 * its figures are this machine's.
 */
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { coordinate } from '../../src/coordinate.ts';
import { defineJob, type Job } from '../../src/job.ts';
import { Session } from '../../src/postgres/session.ts';
import { sweepJob, type Swept } from '../../src/sweep/sweep.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { fillHistory } from '../support/history.ts';
import { scratchFolder } from '../support/scratch.ts';
import { startServer } from '../support/server.ts';

const day = 86_400_000;
const passMs = 240_000;
const days = 140;
const retentionMs = 14 * day;
const passesAtMost = 10;

interface Line {
  readonly what: string;
  readonly pruned: number;
  readonly seconds: number;
  readonly databaseMs: number;
  readonly claimsMs: readonly number[];
}

/** Claims one after another, each on a session of its own, as invocations do, until told to stop. */
async function claimUntil(db: TestDatabase, signal: AbortSignal): Promise<number[]> {
  const task = defineJob({ name: 'claimed', work: async () => 1 });
  const tookMs: number[] = [];
  while (!signal.aborted) {
    const session = await Session.open(targetOf(db.url));
    await session.close(); // the server is warm: what is measured is the claim, not the first connection
    const startedAt = performance.now();
    await coordinate(
      deliveryFor(task, new Date(), { slot: `bench-${tookMs.length}-${startedAt}` }),
      60_000,
      coordinatorOn(db.url),
    );
    tookMs.push(performance.now() - startedAt);
    await sleep(20);
  }
  return tookMs;
}

function theSweep(db: TestDatabase): Job {
  return sweepJob({
    registry: new Map(),
    deliver: async () => Promise.resolve(),
    openSession: async () => Session.open(targetOf(db.url)),
    sinks: [],
    timeoutMs: 2_000,
    retentionMs,
    logger: coordinatorOn(db.url).logger,
  });
}

/** All that statements took on this database, ms; statistics are the superuser's to read. */
async function databaseMs(db: TestDatabase): Promise<number> {
  const [row] = await db.query(
    `SELECT active_time::float8 AS ms, pg_stat_clear_snapshot() FROM pg_stat_database WHERE datname = current_database()`,
  );
  return Number(row?.['ms']);
}

async function during<T>(
  db: TestDatabase,
  work: () => Promise<T>,
): Promise<{ value: T; claimsMs: number[] }> {
  const stop = new AbortController();
  const claims = claimUntil(db, stop.signal);
  const value = await work().finally(() => {
    stop.abort();
  });
  return { value, claimsMs: await claims };
}

async function pass(db: TestDatabase, n: number): Promise<Line> {
  const startedAt = performance.now();
  const work = async () =>
    coordinate(
      deliveryFor(theSweep(db), new Date(), { slot: `manual:${n}`, byHand: true }),
      passMs + 4_000,
      coordinatorOn(db.url),
    );
  const { value, claimsMs } = await during(db, work);
  if (value.status !== 'succeeded') throw new Error(`sweep ${value.status}: ${JSON.stringify(value.error)}`);
  const { pruned } = value.output as unknown as Swept;
  return {
    what: `pass ${n}`,
    pruned,
    seconds: (performance.now() - startedAt) / 1_000,
    databaseMs: 0,
    claimsMs,
  };
}

/** Alone, since what statements took is counted for the database and not for a session. */
async function idlePass(db: TestDatabase): Promise<Line> {
  const before = await databaseMs(db);
  const startedAt = performance.now();
  const run = await coordinate(
    deliveryFor(theSweep(db), new Date(), { slot: `manual:idle-${startedAt}`, byHand: true }),
    passMs + 4_000,
    coordinatorOn(db.url),
  );
  const seconds = (performance.now() - startedAt) / 1_000;
  await db.assertNoLeaks();
  const { pruned } = run.output as unknown as Swept;
  return { what: 'idle pass', pruned, seconds, databaseMs: (await databaseMs(db)) - before, claimsMs: [] };
}

function rank(all: readonly number[], share: number): string {
  const sorted = [...all].sort((one, other) => one - other);
  return all.length === 0 ? '' : (sorted[Math.floor((all.length - 1) * share)] ?? 0).toFixed(1);
}

function print({ what, pruned, seconds, databaseMs: ms, claimsMs }: Line): void {
  const cells = [
    pruned,
    seconds.toFixed(1),
    ms === 0 ? '' : ms.toFixed(0),
    claimsMs.length,
    rank(claimsMs, 0.5),
    rank(claimsMs, 0.99),
  ];
  console.log([what.padEnd(12), ...cells.map((cell) => String(cell).padStart(12))].join(''));
}

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { rows: { type: 'string', default: '2000000' } } });
  const folder = await scratchFolder();
  const server = await startServer({ dataDir: join(folder.path, 'server'), settings: { fsync: 'on' } });
  try {
    const db = await freshDatabase({ serverUrl: server.url });
    const startedAt = performance.now();
    await fillHistory(db, { rows: Number(values.rows), days, jobs: 50 });
    await db.query('VACUUM ANALYZE cronce.run');
    console.log(`${values.rows} rows over ${days} days, nine in ten of one deployment; retention 14 days`);
    console.log(`made in ${((performance.now() - startedAt) / 1_000).toFixed(0)} s\n`);
    console.log(['', 'pruned', 'seconds', 'database ms', 'claims', 'p50 ms', 'p99 ms'].map((head, n) => (n ? head.padStart(12) : head.padEnd(12))).join('')); // prettier-ignore
    const before = await during(db, async () => sleep(30_000));
    print({ what: 'before', pruned: 0, seconds: 30, databaseMs: 0, claimsMs: before.claimsMs });
    for (let n = 1; n <= passesAtMost; n++) {
      const line = await pass(db, n);
      print(line);
      if (line.pruned === 0) break;
    }
    for (let n = 0; n < 3; n++) print(await idlePass(db));
    await db.drop();
  } finally {
    await server.kill();
    await folder.remove();
  }
}

await main();
