import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { lockKey } from '../../src/path/lock.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import {
  advance,
  canceller,
  claimant,
  connect,
  fencedTables,
  forcer,
  inMessages,
  interleave,
  killer,
  leaveOrphan,
  playOut,
  sweeper,
  together,
  Witness,
  type Client,
  type Round,
} from '../support/protocol.ts';
import { randomFrom } from '../support/random.ts';

const noon = '2026-11-29T12:00:00Z';
const one = '2026-11-29T13:00:00Z';
const two = '2026-11-29T14:00:00Z';
const minute = 60_000;

let db: TestDatabase;
let lanes: Lane[];
let rounds = 0;

/** Sessions of its own, so that several rounds go on at once. */
interface Lane {
  readonly sessions: pg.Client[];
  readonly monitor: pg.Client;
}

beforeAll(async () => {
  db = await freshDatabase();
  await db.query(fencedTables);
  lanes = await Promise.all(Array.from({ length: 4 }, openLane));
});

afterAll(async () => {
  const all = lanes.flatMap(({ sessions, monitor }) => [...sessions, monitor]);
  await Promise.all(all.map((session) => session.end()));
  await db.drop();
});

async function openLane(): Promise<Lane> {
  const open = () => connect(db.url);
  return { sessions: await Promise.all(Array.from({ length: 5 }, open)), monitor: await open() };
}

type Sessions = readonly [pg.Client, pg.Client, pg.Client, pg.Client, pg.Client];

/** The lane's sessions; those that a round has ended are replaced, and none is left inside a transaction. */
async function sessionsOf(lane: Lane): Promise<Sessions> {
  const usable = lane.sessions.map(async (session) => {
    try {
      await session.query('ROLLBACK');
      return session;
    } catch {
      return connect(db.url);
    }
  });
  lane.sessions.splice(0, Infinity, ...(await Promise.all(usable)));
  return lane.sessions as unknown as Sessions;
}

/** Plays each order once, several at a time. Answers how many there were. */
async function inLanes(
  all: Iterable<number[]>,
  play: (lane: Lane, order: readonly number[], index: number) => Promise<void>,
): Promise<number> {
  const orders = all[Symbol.iterator]();
  let [played, broken] = [0, false];
  const playOn = async (lane: Lane) => {
    for (let next = orders.next(); !next.done && !broken; next = orders.next()) {
      const order = next.value;
      await play(lane, order, played++).catch((cause: unknown) => {
        broken = true;
        throw new Error(`in the order ${order.join('')}: ${String(cause)}`, { cause });
      });
    }
  };
  const results = await Promise.allSettled(lanes.map(playOn));
  for (const result of results) if (result.status === 'rejected') throw result.reason;
  return played;
}

function roundOf(options: Partial<Round> = {}): Round {
  return { job: `job-${++rounds}`, witness: new Witness(), gapMs: minute, ...options };
}

interface Recorded {
  readonly slot: string;
  readonly status: string;
  readonly skip_reason: string | null;
}

async function recordsOf(lane: Lane, { job }: Round): Promise<Recorded[]> {
  const sql = 'SELECT slot, status, skip_reason FROM cronce.run WHERE job = $1 ORDER BY slot, id';
  return (await lane.monitor.query<Recorded>(sql, [job])).rows;
}

function count(records: readonly Recorded[], status: string, slot?: string): number {
  return records.filter((record) => record.status === status && record.slot === (slot ?? record.slot)).length;
}

/** What holds in every order of anything, whoever ends whom. */
function expectOrder(round: Round, records: readonly Recorded[]): void {
  const { witness, places = 1 } = round;
  expect(witness.mostInside(), 'no more hold the lock than it has places').toBeLessThanOrEqual(places);
  expect(witness.mostVouching(), 'no more vouch for it').toBeLessThanOrEqual(places);
  for (const slot of [noon, one, two]) {
    expect(witness.mostVouching(slot), 'never two of a slot').toBeLessThanOrEqual(1);
    expect(count(records, 'succeeded', slot), 'at most one success a slot').toBeLessThanOrEqual(1);
  }
  expect(count(records, 'succeeded'), 'what committed is what is recorded').toBe(witness.succeeded.length);
  expect(count(records, 'running'), 'everything ends').toBe(0);
}

/** Of the longer lists each fourth one here; all of them by `npm run orders`. */
const oneOf = process.env['CRONCE_ORDERS'] === 'all' ? 1 : 4;

function* some(orders: Iterable<number[]>): Generator<number[]> {
  let index = 0;
  for (const order of orders) if (index++ % oneOf === 0) yield order;
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

/** Orders drawn by chance: so many, each of so many steps of so many clients. */
function* drawn(random: () => number, orders: number, steps: number, clients: number): Generator<number[]> {
  for (let n = 0; n < orders; n++) yield Array.from({ length: steps }, () => Math.floor(random() * clients));
}

async function withSeed(body: (random: () => number) => Promise<void>): Promise<void> {
  const seed = Date.now() % 1_000_000;
  await body(randomFrom(seed)).catch((cause: unknown) => {
    throw new Error(`seed ${seed}, ${String(cause)}`, { cause });
  });
}

/** Lets so many claimants of one slot take their steps in this order, and asks what must always hold. */
async function playOneSlot(lane: Lane, claimants: number, order: readonly number[], gapMs: number) {
  const round = roundOf({ gapMs });
  const sessions = (await sessionsOf(lane)).slice(0, claimants);
  const clients = sessions.map((session, index) =>
    claimant(session, round, { name: 'abc'.charAt(index), slot: noon }),
  );
  await interleave(clients, order, lane.monitor, 'for locks');
  const records = await recordsOf(lane, round);
  expectOrder(round, records);
  expect(round.witness.mostInside()).toBe(1);
  expect(count(records, 'succeeded'), 'exactly one success').toBe(1);
  expect(records, 'every delivery has its record').toHaveLength(claimants);
  if (gapMs > 0) expect(count(records, 'skipped'), 'the others skip').toBe(claimants - 1);
}

/** 0: nobody is seen to be starting, as if every clock had jumped. Then all is left to status and fence. */
describe.each([minute, 0])('where a start record counts as starting for %d ms', (gapMs) => {
  it('two deliveries of one slot, in all 252 orders of their steps: one success, never two inside', async () => {
    const play = (lane: Lane, order: readonly number[]) => playOneSlot(lane, 2, order, gapMs);
    expect(await inLanes(ordersOf([5, 5]), play)).toBe(252);
  }, 300_000);

  it('two of a slot and one of another, with two places, in 1,680 orders of their messages (a quarter of them here): one success each', async () => {
    const play = async (lane: Lane, order: readonly number[]) => {
      await playTwoPlaces(lane, order, { gapMs });
    };
    expect(await inLanes(some(ordersOf([3, 3, 3])), play)).toBe(1_680 / oneOf);
  }, 300_000);
});

it('three deliveries of one slot, in 300 random orders', async () => {
  await withSeed(async (random) => {
    await inLanes(drawn(random, 300, 24, 3), (lane, order, index) =>
      playOneSlot(lane, 3, order, index % 2 ? minute : 0),
    );
  });
}, 300_000);

async function playAllKinds(lane: Lane, order: readonly number[]): Promise<void> {
  const round = roundOf();
  const [first, second, third, fourth] = await sessionsOf(lane);
  const cancelled = randomUUID();
  await leaveOrphan(lane.monitor, round.job, noon);
  const clients = [
    inMessages(claimant(first, round, { name: 'a', slot: noon, id: cancelled })),
    inMessages(claimant(second, round, { name: 'b', slot: noon })),
    sweeper(third, round),
    canceller(fourth, cancelled),
  ];
  await interleave(clients, order, lane.monitor);
  const records = await recordsOf(lane, round);
  expectOrder(round, records);
  expect(count(records, 'lost'), 'the orphan, and nothing else, is lost').toBe(1);
  const ended = count(records, 'succeeded') + count(records, 'cancelled');
  expect(ended, 'a success, or its cancel').toBeGreaterThanOrEqual(1);
}

it('two deliveries, a sweep and a cancel, in 5,040 orders of their messages (a quarter of them here)', async () => {
  expect(await inLanes(some(ordersOf([3, 3, 2, 1])), playAllKinds)).toBe(5_040 / oneOf);
}, 300_000);

/** Slot noon is delivered twice, slot one once. The third must never be turned away by what the duplicate takes. */
async function playTwoPlaces(lane: Lane, order: readonly number[], options: Partial<Round>, single = false) {
  const round = roundOf({ places: 2, ...options });
  const [first, second, third] = await sessionsOf(lane);
  const clients = [
    claimant(first, round, { name: 'a', slot: noon }),
    claimant(second, round, { name: 'a again', slot: noon }),
    claimant(third, round, { name: 'b', slot: one }),
  ];
  await interleave(single ? clients : clients.map((client) => inMessages(client)), order, lane.monitor);
  const records = await recordsOf(lane, round);
  expectOrder(round, records);
  expect(records).toHaveLength(3);
  // Unseen while it starts, a run may be taken for dead: then it is lost, and delivered again. But never turned away.
  const unseen = round.gapMs === 0 ? count(records, 'lost') : 0;
  for (const slot of [noon, one])
    expect(count(records, 'succeeded', slot) + unseen, `${slot} succeeds`).toBeGreaterThanOrEqual(1);
  return records;
}

it('with two places, in 300 random orders of single steps: a T0 that stands open turns nobody away', async () => {
  await withSeed(async (random) => {
    await inLanes(drawn(random, 300, 15, 3), async (lane, order, index) => {
      await playTwoPlaces(lane, order, { gapMs: index % 2 ? minute : 0, patienceMs: 10_000 }, true);
    });
  });
}, 300_000);

describe('a run that does not end by its own hand is waited for', () => {
  let delayed: number;
  type Plot = (lane: Lane, round: Round) => Promise<Client[]>;

  /** The round's order, and after it a third slot, which must get in whatever happened, and late enough. */
  const playPlot = (plot: Plot) => async (lane: Lane, order: readonly number[]) => {
    const round = roundOf();
    await interleave(await plot(lane, round), order, lane.monitor);
    const [, , third, fourth] = await sessionsOf(lane);
    await playOut(claimant(third, round, { name: 'c', slot: two }));
    round.witness.young.clear();
    await playOut(sweeper(fourth, round));
    const records = await recordsOf(lane, round);
    expectOrder(round, records);
    expect(count(records, 'succeeded', two), 'nobody is stranded').toBe(1);
    delayed += round.witness.delayed;
  };
  const reopen = () => connect(db.url);

  beforeAll(() => void (delayed = 0));

  it('ended by force anywhere, in 1,260 orders (a quarter of them here)', async () => {
    const plot: Plot = async (lane, round) => {
      const [first, second, , fourth] = await sessionsOf(lane);
      const id = randomUUID();
      return [
        inMessages(claimant(first, round, { name: 'a', slot: noon, id, reopen }), ['claims']),
        inMessages(claimant(second, round, { name: 'b', slot: one })),
        forcer(fourth, id),
      ];
    };
    expect(await inLanes(some(ordersOf([4, 3, 2])), playPlot(plot))).toBe(1_260 / oneOf);
    expect(delayed).toBeGreaterThan(100 / oneOf);
  }, 300_000);

  it.each([noon, one])(
    'its session ended anywhere, in all 504 orders, the next one %s',
    async (slot) => {
      const plot: Plot = async (lane, round) => {
        const [first, second, , fourth] = await sessionsOf(lane);
        return [
          claimant(first, round, { name: 'a', slot: noon, reopen }),
          inMessages(claimant(second, round, { name: 'b', slot })),
          killer(fourth, first),
        ];
      };
      delayed = 0;
      expect(await inLanes(ordersOf([5, 3, 1]), playPlot(plot))).toBe(504);
      expect(delayed).toBeGreaterThan(50);
    },
    300_000,
  );

  it('its session ended, and swept, in 1,680 orders (a quarter of them here)', async () => {
    const plot: Plot = async (lane, round) => {
      const [first, second, third, fourth] = await sessionsOf(lane);
      return [
        inMessages(claimant(first, round, { name: 'a', slot: noon, reopen })),
        inMessages(claimant(second, round, { name: 'b', slot: one })),
        together(killer(fourth, first), sweeper(third, round)),
      ];
    };
    delayed = 0;
    expect(await inLanes(some(ordersOf([3, 3, 3])), playPlot(plot))).toBe(1_680 / oneOf);
    expect(delayed).toBeGreaterThan(200 / oneOf);
  }, 300_000);
});

describe('where they wait for the lock', () => {
  const waitMs = 30_000;

  it('three slots, in 1,680 orders (a quarter of them here): each succeeds', async () => {
    const play = async (lane: Lane, order: readonly number[]) => {
      const round = roundOf({ waitMs });
      const sessions = await sessionsOf(lane);
      const clients = [noon, one, two].map((slot, index) =>
        inMessages(claimant(sessions[index] as pg.Client, round, { name: 'abc'.charAt(index), slot })),
      );
      await interleave(clients, order, lane.monitor);
      const records = await recordsOf(lane, round);
      expectOrder(round, records);
      expect(count(records, 'succeeded')).toBe(3);
    };
    expect(await inLanes(some(ordersOf([3, 3, 3])), play)).toBe(1_680 / oneOf);
  }, 300_000);

  it('two of a slot and one of another, with two places, in 1,680 orders (a quarter of them here): the second is a duplicate', async () => {
    const play = async (lane: Lane, order: readonly number[]) => {
      const records = await playTwoPlaces(lane, order, { waitMs });
      const skips = records.filter(({ status }) => status === 'skipped');
      expect(skips.map(({ skip_reason }) => skip_reason)).toEqual(['duplicate']);
    };
    expect(await inLanes(some(ordersOf([3, 3, 3])), play)).toBe(1_680 / oneOf);
  }, 300_000);

  it('for one whose session is ended, in all 140 orders: the one that waits gets in, and late enough', async () => {
    const play = async (lane: Lane, order: readonly number[]) => {
      const round = roundOf({ waitMs });
      const [first, second, third, fourth] = await sessionsOf(lane);
      const clients = [
        inMessages(claimant(first, round, { name: 'a', slot: noon, reopen: () => connect(db.url) })),
        inMessages(claimant(second, round, { name: 'b', slot: one })),
        killer(third, first),
      ];
      await interleave(clients, order, lane.monitor);
      await playOut(sweeper(fourth, round));
      const records = await recordsOf(lane, round);
      expectOrder(round, records);
      expect(count(records, 'succeeded', one)).toBe(1);
    };
    expect(await inLanes(ordersOf([3, 3, 1]), play)).toBe(140);
  }, 120_000);
});

it('a claim that waits sees those start that connected after it had begun to wait', async () => {
  const lane = lanes[0] as Lane;
  const round = roundOf({ waitMs: 30_000 });
  const [first, second] = await sessionsOf(lane);
  const holder = inMessages(claimant(first, round, { name: 'a', slot: noon }));
  await advance(holder, 1); // starting: the one that waits has to ask whose backends live
  const waiter = inMessages(claimant(second, round, { name: 'b', slot: one }));
  const waited = playOut(waiter);
  await expect.poll(() => isPolling(lane, second)).toBe(true);
  await advance(holder, 1);
  const fresh = await connect(db.url);
  // In line for the lock as PostgreSQL keeps it: no claim that polls comes before it.
  const inLine = fresh.query('SELECT pg_advisory_lock($1)', [lockKey(round.job).toString()]);
  const late = claimant(fresh, round, { name: 'c', slot: two });
  await advance(holder, 1);
  await inLine;
  await advance(late, 2);
  await fresh.query('SELECT pg_advisory_unlock_all()');
  await Promise.race([waited, polls(lane, second, 5)]);
  await playOut(late);
  await waited;
  await fresh.end();
  const records = await recordsOf(lane, round);
  expectOrder(round, records);
  expect(count(records, 'succeeded')).toBe(3);
});

async function isPolling(lane: Lane, session: pg.Client): Promise<boolean> {
  const sql = `SELECT FROM pg_stat_get_activity($1) WHERE wait_event = 'PgSleep'`;
  const { processID } = session as unknown as { processID: number };
  return (await lane.monitor.query(sql, [processID])).rowCount === 1;
}

/** Once a session has gone to sleep so many times. */
async function polls(lane: Lane, session: pg.Client, times: number): Promise<void> {
  for (let seen = 0, slept = false; seen < times;) {
    const sleeps = await isPolling(lane, session);
    if (sleeps && !slept) seen += 1;
    slept = sleeps;
  }
}

describe('where a later slot replaces the run that holds the lock', () => {
  it.each(['by force', 'when it has heard'] as const)(
    '%s: two of them, in 1,260 orders of their messages (a quarter of them here): the latest slot succeeds',
    async (replace) => {
      const play = async (lane: Lane, order: readonly number[]) => {
        const round = roundOf({ replace, patienceMs: 10_000 });
        const [first, second, third] = await sessionsOf(lane);
        const reopen = () => connect(db.url);
        const clients = [
          inMessages(claimant(first, round, { name: 'a', slot: noon, reopen })),
          inMessages(claimant(second, round, { name: 'b', slot: one, reopen })),
          inMessages(claimant(third, round, { name: 'c', slot: two, reopen })),
        ] as const;
        await advance(clients[0], 2);
        await interleave(clients, order, lane.monitor);
        const records = await recordsOf(lane, round);
        expectOrder(round, records);
        expect(count(records, 'succeeded', two), 'the latest slot succeeds').toBe(1);
        expect(records, 'each delivery has its one record').toHaveLength(3);
        for (const { status, skip_reason } of records)
          expect(['succeeded', 'cancelled', 'held']).toContain(skip_reason ?? status);
      };
      expect(await inLanes(some(ordersOf([1, 4, 5])), play)).toBe(1_260 / oneOf);
    },
    300_000,
  );
});

/** `for locks`: whoever ends a run waits out its fenced transaction, until he ends that by force. */
describe.each(['all', 'for locks'] as const)(
  'fenced, where steps are put aside while they wait %s',
  (waits) => {
    type Ending = (sessions: Sessions, id: string, round: Round) => Client;

    /** A trigger counts what a run's fenced transactions had committed when the run left `running`. */
    const expectNothingLater = async (lane: Lane, { job }: Round) => {
      const { rows } = await lane.monitor.query<{ late: number }>(
        `SELECT (SELECT count(*) FROM fenced_note n WHERE n.run_id = u.run_id)::int - u.notes AS late
       FROM fenced_until u JOIN cronce.run r ON r.id = u.run_id WHERE r.job = $1`,
        [job],
      );
      expect(rows.length).toBeGreaterThan(0);
      expect(Math.max(...rows.map(({ late }) => late)), 'nothing fenced commits after its run').toBe(0);
    };

    const playEnding = (ending: Ending) => async (lane: Lane, order: readonly number[]) => {
      const round = roundOf();
      const sessions = await sessionsOf(lane);
      const [first, second, , , beside] = sessions;
      const id = randomUUID();
      const reopen = () => connect(db.url);
      const holder = inMessages(claimant(first, round, { name: 'a', slot: noon, id, beside, reopen }));
      const next = inMessages(claimant(second, round, { name: 'b', slot: one }));
      await advance(holder, 2);
      await interleave([holder, ending(sessions, id, round), next], order, lane.monitor, waits);
      expectOrder(round, await recordsOf(lane, round));
      await expectNothingLater(lane, round);
    };

    it('ended by force, in all 560 orders: nothing commits after its run', async () => {
      const ending: Ending = ([, , third], id) => forcer(third, id);
      expect(await inLanes(ordersOf([3, 2, 3]), playEnding(ending))).toBe(560);
    }, 300_000);

    it('its lock’s session ended, and swept, in all 560 orders: nothing commits after its run', async () => {
      const ending: Ending = ([first, , third, fourth], _, round) =>
        together(killer(fourth, first), sweeper(third, round));
      expect(await inLanes(ordersOf([3, 3, 2]), playEnding(ending))).toBe(560);
    }, 300_000);
  },
);
