import type pg from 'pg';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { claimant, connect, interleave, Witness } from './support/protocol.ts';
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
async function play(claimants: number, order: readonly number[]): Promise<void> {
  const here = { job: `job-${++round}`, slot: '2026-11-29T12:00:00Z', witness: new Witness() };
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
  expect(rows, told).toEqual([
    { status: 'succeeded', n: 1 },
    { status: 'skipped', n: claimants - 1 },
  ]);
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

it('two deliveries of one slot, in all 252 orders of their steps: one success, never two inside', async () => {
  const orders = ordersOfTwo(5, 5);
  expect(orders).toHaveLength(252);
  for (const order of orders) await play(2, order);
}, 120_000);

it('three deliveries of one slot, in 300 random orders', async () => {
  const seed = Date.now() % 1_000_000;
  const random = randomFrom(seed);
  try {
    for (let n = 0; n < 300; n++)
      await play(
        3,
        Array.from({ length: 24 }, () => Math.floor(random() * 3)),
      );
  } catch (error) {
    throw new Error(`seed ${seed}`, { cause: error });
  }
}, 120_000);
