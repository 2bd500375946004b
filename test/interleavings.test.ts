import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { randomUUID } from 'node:crypto';
import {
  canceller,
  claimant,
  connect,
  inMessages,
  interleave,
  leaveOrphan,
  sweeper,
  Witness,
  type Round,
} from './support/protocol.ts';
import { freshDatabase, type TestDatabase } from './support/database.ts';
import { randomFrom } from './support/random.ts';

let db: TestDatabase;
let sessions: pg.Client[];
let monitor: pg.Client;
let round = 0;

beforeAll(async () => {
  db = await freshDatabase();
  sessions = await Promise.all([1, 2, 3].map(() => connect(db.url)));
  monitor = await connect(db.url);
});

afterAll(async () => {
  await Promise.all([...sessions, monitor].map((session) => session.end()));
  await db.drop();
});

/** Lets so many claimants of one slot take their steps in this order, and asks what must always hold. */
async function play(claimants: number, order: readonly number[], gapMs: number): Promise<void> {
  const here = { job: `job-${++round}`, slot: '2026-11-29T12:00:00Z', witness: new Witness(), gapMs };
  const clients = sessions
    .slice(0, claimants)
    .map((session, index) => claimant(session, here, 'abc'.charAt(index)));
  await interleave(clients, order, monitor);
  const told = order.map((index) => 'abc'.charAt(index)).join('');
  expect(here.witness.mostInside, `never two inside: ${told}`).toBe(1);
  expect(here.witness.succeeded, `exactly one success: ${told}`).toHaveLength(1);
  const { rows } = await monitor.query<{ status: string; n: number }>(
    'SELECT status, count(*)::int AS n FROM cronce.run WHERE job = $1 GROUP BY status ORDER BY status DESC',
    [here.job],
  );
  const others = rows.filter(({ status }) => status !== 'succeeded');
  expect(
    others.reduce((sum, { n }) => sum + n, 0),
    `every delivery has its record: ${told}`,
  ).toBe(claimants - 1);
  if (gapMs > 0)
    expect(
      others.map(({ status }) => status),
      `the others skip: ${told}`,
    ).toEqual(['skipped']);
}

/** One lane of its own sessions, so that several rounds go on at once. */
interface Lane {
  readonly sessions: readonly pg.Client[];
  readonly monitor: pg.Client;
}

async function playAllKinds(lane: Lane, order: readonly number[]): Promise<void> {
  const here: Round = {
    job: `kinds-${++round}`,
    slot: '2026-11-29T12:00:00Z',
    witness: new Witness(),
    gapMs: 60_000,
  };
  const [first, second, third, fourth] = lane.sessions as [pg.Client, pg.Client, pg.Client, pg.Client];
  const cancelled = randomUUID();
  await leaveOrphan(lane.monitor, here);
  const clients = [
    inMessages(claimant(first, here, 'a', cancelled)),
    inMessages(claimant(second, here, 'b')),
    sweeper(third, here),
    canceller(fourth, cancelled),
  ];
  await interleave(clients, order, lane.monitor);
  const told = order.map((index) => 'absc'.charAt(index)).join('');
  const { rows } = await lane.monitor.query<{ status: string; n: number }>(
    'SELECT status, count(*)::int AS n FROM cronce.run WHERE job = $1 GROUP BY status',
    [here.job],
  );
  const count = (status: string) => rows.find((row) => row.status === status)?.n ?? 0;
  expect(here.witness.mostInside, `never two inside: ${told}`).toBeLessThanOrEqual(1);
  expect(count('running'), `everything ends: ${told}`).toBe(0);
  expect(count('lost'), `the orphan, and nothing else, is lost: ${told}`).toBe(1);
  expect(count('succeeded') + count('cancelled'), `a success, or its cancel: ${told}`).toBeGreaterThanOrEqual(
    1,
  );
  expect(count('succeeded'), `what committed is what is recorded: ${told}`).toBe(
    here.witness.succeeded.length,
  );
  expect(count('succeeded'), told).toBeLessThanOrEqual(1);
}

/** Every order of so many steps of each client: a multinomial number of them. */
function* ordersOf(steps: readonly number[]): Generator<number[]> {
  if (steps.every((left) => left === 0)) yield [];
  for (let index = 0; index < steps.length; index++) {
    const left = steps[index] ?? 0;
    if (left === 0) continue;
    for (const rest of ordersOf(steps.with(index, left - 1))) yield [index, ...rest];
  }
}

/** Every order of five steps of `a` and five of `b`: 252. */
function ordersOfTwo(a: number, b: number): number[][] {
  if (a === 0) return [Array<number>(b).fill(1)];
  if (b === 0) return [Array<number>(a).fill(0)];
  return [
    ...ordersOfTwo(a - 1, b).map((rest) => [0, ...rest]),
    ...ordersOfTwo(a, b - 1).map((rest) => [1, ...rest]),
  ];
}

/** 0: nobody is seen to be starting, as if every clock had jumped. Then all is left to status and fence. */
describe.each([60_000, 0])('where a start record counts as starting for %d ms', (gapMs) => {
  it('two deliveries of one slot, in all 252 orders of their steps: one success, never two inside', async () => {
    const orders = ordersOfTwo(5, 5);
    expect(orders).toHaveLength(252);
    for (const order of orders) await play(2, order, gapMs);
  }, 120_000);
});

it('three deliveries of one slot, in 300 random orders', async () => {
  const seed = Date.now() % 1_000_000;
  const random = randomFrom(seed);
  try {
    for (let n = 0; n < 300; n++)
      await play(
        3,
        Array.from({ length: 24 }, () => Math.floor(random() * 3)),
        n % 2 ? 60_000 : 0,
      );
  } catch (error) {
    throw new Error(`seed ${seed}`, { cause: error });
  }
}, 120_000);

it('two deliveries, a sweep and a cancel, in all 5,040 orders of their messages', async () => {
  const lanes = await Promise.all(
    [1, 2, 3, 4].map(async () => ({
      sessions: await Promise.all([1, 2, 3, 4].map(() => connect(db.url))),
      monitor: await connect(db.url),
    })),
  );
  const orders = ordersOf([3, 3, 2, 1]);
  let played = 0;
  await Promise.all(
    lanes.map(async (lane) => {
      for (let next = orders.next(); !next.done; next = orders.next()) {
        played += 1;
        await playAllKinds(lane, next.value);
      }
    }),
  );
  await Promise.all(
    lanes.flatMap(({ sessions: all, monitor: one }) => [...all, one].map((session) => session.end())),
  );
  expect(played).toBe(5_040);
}, 300_000);
