import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { schemaVersion } from '../../src/path/claim.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import {
  after,
  holding,
  locksOf,
  nobody,
  noon,
  stage,
  type Columns,
  type Holder,
  type Row,
} from '../support/rows.ts';

/** Who has a lock, who is about to, and who may run: function by function, on rows made by hand. */
let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

const earlier = '2026-11-29T11:00:00Z';
const later = '2026-11-29T13:00:00Z';

/** Asks in the holder's own transaction. */
async function askBy<T>({ session }: Holder, call: string, ...values: readonly unknown[]): Promise<T> {
  const { rows } = await session.query<{ answer: T }>(`SELECT cronce.${call} AS answer`, [...values]);
  return rows[0]?.answer as T;
}

describe('watch', () => {
  it.each([
    ['at work with the lock', true, ['key'], true],
    ['idle with the lock', false, ['key'], false],
    ['at work without the lock', true, [], false],
    ['at work with another', true, ['other'], false],
  ])('%s', async (_what, active, locks, atWork) => {
    const s = stage(db);
    const keys = locks.map((name) => (name === 'key' ? s.key : '78'));
    await holding(db, { keys }, async (by) => {
      const id = await s.run({ backend_pid: by.pid });
      if (active) by.session.query('SELECT pg_sleep(60)').catch(() => undefined);
      const state = () =>
        db.query(`SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND state = 'active'`, [by.pid]);
      if (active) await expect.poll(state, { interval: 5 }).toHaveLength(1);
      expect(await s.ask('watch($1, $2, $3)', by.pid, s.key, id)).toEqual({
        ...{ stands: true, status: 'running', cancelBy: null },
        atWork,
      });
      await db.query('SELECT pg_terminate_backend($1)', [by.pid]);
    });
  });

  it('of a backend that is gone', async () => {
    const s = stage(db);
    const id = await s.run();
    expect(await s.ask('watch($1, $2, $3)', nobody, s.key, id)).toMatchObject({ atWork: false });
  });
});

describe('beat', () => {
  it.each<[string, Columns, Columns, Columns]>([
    ['stands', {}, {}, { stands: true, status: 'running', cancelBy: null }],
    ['a higher fence', {}, { fence: 2 }, { stands: false, status: 'running', cancelBy: null }],
    ['another run’s fence', {}, { run_id: randomUUID() }, { stands: false }],
    ['settled', { status: 'lost', final: false }, {}, { stands: false, status: 'lost', cancelBy: null }],
    [
      'to be cancelled',
      { cancel_requested_at: after(0), cancel_requested_by: 'ann' },
      {},
      { stands: true, cancelBy: 'ann' },
    ],
  ])('%s', async (_what, row, lock, heard) => {
    const s = stage(db);
    const id = await s.run(row);
    await s.lock({ run_id: id, of_slot: false, ...lock });
    await holding(db, {}, async (by) => {
      expect(await askBy(by, 'beat($1)', id)).toMatchObject(heard);
      expect(await locksOf(db, by)).toEqual({ keys: [], tables: [] });
    });
  });

  it('raises nothing where it can’t look', async () => {
    const s = stage(db);
    const id = await s.run();
    await holding(db, {}, async (migration) => {
      await migration.session.query('LOCK TABLE cronce.run IN ACCESS EXCLUSIVE MODE');
      await holding(db, {}, async (by) => {
        await by.session.query(`SET LOCAL lock_timeout = '50ms'`);
        expect(await askBy(by, 'beat($1)', id)).toBeNull();
        expect((await by.session.query('SELECT 1 AS alive')).rows).toEqual([{ alive: 1 }]);
      });
    });
  });
});

describe('orphans', () => {
  beforeEach(async () => {
    await db.query('DELETE FROM cronce.run');
  });
  const old = { claimed_at: after(-10_000) };
  async function orphans(deployment = 'default', most = 100): Promise<Row[]> {
    return db.query('SELECT id, fence FROM cronce.orphans(5000, $1, $2)', [most, deployment]);
  }

  it.each<[string, Columns, ('key' | 'other')[], boolean]>([
    ['whose backend is gone', old, [], true],
    ['whose backend has the lock', old, ['key'], false],
    ['whose backend has become another’s, with its lock', old, ['other'], true],
    ['that may be between T0 and T1', { claimed_at: after(-1_000) }, [], false],
    ['that is over', { ...old, status: 'succeeded', final: true }, [], false],
    ['of another deployment', { ...old, deployment: 'other' }, [], false],
  ])('one %s', async (_what, row, locks, found) => {
    const s = stage(db);
    await holding(db, { keys: locks.map((name) => (name === 'key' ? s.key : '79')) }, async ({ pid }) => {
      const id = await s.run({ fence: 4, ...(locks.length > 0 ? { backend_pid: pid } : {}), ...row });
      expect(await orphans()).toEqual(found ? [{ id, fence: '4' }] : []);
      if (row['deployment']) expect(await orphans('other')).toEqual([{ id, fence: '4' }]);
    });
  });

  it('one whose backend has another’s lock of the same number, in another database', async () => {
    const s = stage(db);
    const other = await freshDatabase({ migrated: false });
    await holding(other, { keys: [s.key] }, async ({ pid }) => {
      const id = await s.run({ ...old, backend_pid: pid });
      expect(await orphans()).toMatchObject([{ id }]);
    });
    await other.drop();
  });

  it('one whose backend has a lock of two integers, which is another space', async () => {
    const s = stage(db);
    await holding(db, {}, async ({ pid, session }) => {
      await session.query('SELECT pg_advisory_xact_lock(0, 93)');
      const id = await s.run({ ...old, lock_key: 93, backend_pid: pid });
      expect(await orphans()).toMatchObject([{ id }]);
    });
  });

  it('one whose backend only waits for the lock', async () => {
    const s = stage(db);
    await holding(db, { keys: [s.key] }, async (first) =>
      holding(db, {}, async (second) => {
        const waits = second.session.query('SELECT pg_advisory_xact_lock($1)', [s.key]);
        waits.catch(() => undefined);
        const blocked = () => db.query('SELECT 1 FROM pg_locks WHERE pid = $1 AND NOT granted', [second.pid]);
        await expect.poll(blocked, { interval: 5 }).toHaveLength(1);
        const id = await s.run({ ...old, backend_pid: second.pid });
        expect(await orphans()).toMatchObject([{ id }]);
        await first.session.query('COMMIT');
        await waits;
        expect(await orphans()).toEqual([]);
      }),
    );
  });

  it('the oldest first, and no more than wanted', async () => {
    const s = stage(db);
    const ids = [];
    for (const ms of [20_000, 40_000, 30_000]) ids.push(await s.run({ claimed_at: after(-ms) }));
    const found = (await orphans('default', 2)).map(({ id }) => id);
    expect(found.sort()).toEqual([ids[1], ids[2]].sort());
  });

  it('settle_orphans: settles those, and begins the delays that nobody began', async () => {
    const s = stage(db);
    const lost = { status: 'lost', final: false, delay_until: 'infinity' };
    await holding(db, { keys: [s.key] }, async ({ pid }) => {
      const gone = await s.run({ ...old, lock_key: 81 });
      const mine = await s.run({ ...old, backend_pid: pid });
      const free = await s.run({ ...lost, lock_key: 82 });
      const held = await s.run({ ...lost, backend_pid: pid });
      const foreign = [
        await s.run({ ...old, lock_key: 83, deployment: 'other' }),
        await s.run({ ...lost, lock_key: 84, deployment: 'other' }),
      ];
      expect(await s.ask('settle_orphans(5000, 100, NULL)')).toMatchObject([
        { id: gone, status: 'lost', error: { name: 'HolderGone' } },
      ]);
      const states = await Promise.all(
        [gone, mine, free, held, ...foreign].map(async (id) => {
          const { status, delay } = await s.row(id);
          return [status, Number(delay) > 10 ? 'begun' : delay];
        }),
      );
      expect(states).toEqual([
        ['lost', 'begun'],
        ['running', 'none'],
        ['lost', 'begun'],
        ['lost', 'unbegun'],
        ['running', 'none'],
        ['lost', 'unbegun'],
      ]);
    });
  });
});

describe('is_starting', () => {
  it.each<[string, Columns, boolean]>([
    ['young, its backend lives', {}, true],
    ['of the slot, under another lock', { lock_key: 5 }, true],
    ['of the lock, for another slot', { guard_key: 5 }, true],
    ['of neither', { lock_key: 5, guard_key: 6 }, false],
    ['too old: its backend’s number may be another’s', { claimed_at: after(-6_000) }, false],
    ['its backend is gone', { backend_pid: nobody }, false],
    ['over', { status: 'failed', final: false }, false],
  ])('%s', async (_what, row, starting) => {
    const s = stage(db);
    await holding(db, {}, async ({ pid }) => {
      const id = await s.run({ backend_pid: pid, ...row });
      const call = 'is_starting($1, $2, $3, 5000)';
      expect(await s.ask(call, s.key, s.guard, randomUUID())).toBe(starting);
      expect(await s.ask(call, s.key, s.guard, id), 'never oneself').toBe(false);
    });
  });
});

describe('take_place', () => {
  const places = (s: { key: string }, count: number) =>
    Array.from({ length: count }, (_, n) => (BigInt(s.key) + BigInt(n)).toString());

  it.each<
    [string, number, { held?: number[]; starting?: number[]; guard?: 'held' | 'starting' }, number | null]
  >([
    ['free', 1, {}, 0],
    ['held', 1, { held: [0] }, null],
    ['free, but another is about to have it', 1, { starting: [0] }, null],
    ['its slot’s guard is held', 1, { guard: 'held' }, null],
    ['its slot is about to run', 1, { guard: 'starting' }, null],
    ['the first of three', 3, {}, 0],
    ['the second of three', 3, { held: [0] }, 1],
    ['the last of three', 3, { held: [0], starting: [1] }, 2],
    ['none of three', 3, { held: [0, 2], starting: [1] }, null],
    ['none of three, for a duplicate', 3, { guard: 'held' }, null],
    ['none of three, for a duplicate of one that is about to run', 3, { guard: 'starting' }, null],
  ])('%s', async (_what, count, { held = [], starting = [], guard }, taken) => {
    const s = stage(db);
    const keys = places(s, count);
    const heldKeys = [...held.map((n) => String(keys[n])), ...(guard === 'held' ? [s.guard] : [])];
    await holding(db, { keys: heldKeys }, async ({ pid }) => {
      for (const n of starting) await s.run({ lock_key: keys[n], guard_key: 5, backend_pid: pid });
      if (guard === 'starting') await s.run({ lock_key: 6, backend_pid: pid });
      await holding(db, {}, async (by) => {
        const key = await askBy<string | null>(
          by,
          'take_place($1, $2, $3, 5000)',
          keys,
          s.guard,
          randomUUID(),
        );
        expect(key).toBe(taken === null ? null : keys[taken]);
        const locks = await locksOf(db, by);
        expect(locks.keys.sort(), 'what is not kept is let go').toEqual(
          taken === null ? [] : [s.guard, String(keys[taken])].sort(),
        );
        if (taken === null) expect(locks.tables).toEqual([]);
      });
    });
  });

  it('a place, but not for itself: a claim that is made again does not see itself starting', async () => {
    const s = stage(db);
    await holding(db, {}, async (by) => {
      const id = await s.run({ backend_pid: by.pid });
      expect(await askBy(by, 'take_place($1, $2, $3, 5000)', [s.key], s.guard, id)).toBe(s.key);
    });
  });
});

describe('holder_of', () => {
  const over = { status: 'failed', final: false };
  const ago = (seconds: number) => ({ claimed_at: after(-seconds * 1_000) });
  /** Of two places, 1 and 2, of a lock; `own` is of the same slot; one that `waits` holds nothing yet. */
  it.each<[string, (Columns & { place: number; own?: true; waits?: true })[], number | null]>([
    ['no place is taken', [], null],
    [
      'each is taken: the one that came first',
      [
        { place: 1, ...ago(60) },
        { place: 2, ...ago(90) },
      ],
      1,
    ],
    ['one may come free, or is a stranger’s', [{ place: 1 }], null],
    ['the one of the slot, whatever is free', [{ place: 1, own: true }], 0],
    [
      'the one of the slot before any other',
      [
        { place: 2, ...ago(90) },
        { place: 1, own: true },
      ],
      1,
    ],
    ['the one of the slot, under another lock', [{ place: 9, own: true }], 0],
    ['not one of another lock', [{ place: 9 }], null],
    ['the dead do not count', [{ place: 1, backend_pid: nobody }, { place: 2 }], null],
    ['nor who is over', [{ place: 1, ...over }, { place: 2 }], null],
    ['nor one that is starting for too long', [{ place: 1, waits: true, ...ago(60) }, { place: 2 }], null],
    ['one that is starting does', [{ place: 1, waits: true, ...ago(2) }, { place: 2 }], 0],
  ])('%s', async (_what, rows, found) => {
    const s = stage(db);
    const key = (place: number) => (BigInt(s.key) + BigInt(place)).toString();
    const keys = rows.filter(({ waits }) => !waits).map(({ place }) => key(place));
    await holding(db, { keys }, async ({ pid }) => {
      const ids: string[] = [];
      for (const { place, own, waits: _, ...row } of rows) {
        const guard_key = own ? s.guard : 5;
        ids.push(await s.run({ backend_pid: pid, lock_key: key(place), guard_key, ...row }));
      }
      const ask = async (by: Holder, self: string) =>
        askBy(by, 'record(cronce.holder_of($1, $2, $3, 5000))', [key(1), key(2)], s.guard, self);
      await holding(db, {}, async (by) => {
        expect(await ask(by, randomUUID())).toMatchObject({ id: found === null ? null : ids[found] });
        expect(await locksOf(db, by)).toEqual({ keys: [], tables: [] });
        if (rows.length === 1)
          expect(await ask(by, ids[0] ?? ''), 'never oneself').toMatchObject({ id: null });
      });
    });
  });
});

describe('refusal', () => {
  const over = (status: string, columns: Columns = {}) => ({ status, final: true, ...columns });
  const retry = { status: 'failed', final: false };
  const held = { after_lost: 'hold' };
  it.each<
    [string, Columns[], { run?: Columns; policy?: Columns; paused?: string }, string | null, string | null]
  >([
    ['a new slot', [], {}, null, null],
    ['a success', [over('succeeded')], {}, 'duplicate', 'duplicate'],
    ['another slot’s success', [over('succeeded', { slot: earlier })], {}, null, null],
    ['another deployment’s success', [over('succeeded', { deployment: 'x' })], {}, null, null],
    ['another job’s success', [over('succeeded', { job: 'x' })], {}, null, null],
    ['its last attempt failed', [retry, over('failed')], {}, 'duplicate', null],
    ['cancelled', [over('cancelled')], {}, 'duplicate', null],
    ['lost for good', [over('lost')], {}, 'duplicate', null],
    ['lost, on hold', [over('lost', held)], {}, 'on_hold', null],
    ['lost on hold, then cancelled by hand', [over('lost', held), over('cancelled')], {}, 'on_hold', null],
    ['it may be tried again', [retry], {}, null, null],
    ['it was held', [{ status: 'skipped' }], {}, null, null],
    ['it was given up for want of time', [{ status: 'skipped', final: false }], {}, null, null],
    ['it was missed', [over('missed', { final: null })], {}, null, null],
    ['paused', [], { paused: 'default' }, 'paused', null],
    ['paused elsewhere', [], { paused: 'x' }, null, null],
    ['a paused duplicate', [over('succeeded')], { paused: 'default' }, 'duplicate', 'duplicate'],
    ['too late', [], { policy: { startDeadlineMs: 59_000 } }, 'too_late', null],
    ['just in time', [], { policy: { startDeadlineMs: 61_000 } }, null, null],
    ['paused and too late', [], { paused: 'default', policy: { startDeadlineMs: 1 } }, 'paused', null],
    ['off schedule', [], { run: { offSchedule: true } }, 'off_schedule', 'off_schedule'],
    ['off schedule before, too', [{ status: 'skipped', skip_reason: 'off_schedule' }], { run: { offSchedule: true } }, 'off_schedule', 'off_schedule'], // prettier-ignore
    ['off schedule, but a known slot', [{ status: 'skipped' }], { run: { offSchedule: true } }, null, null],
  ])('%s', async (_what, rows, { paused, ...asked }, byRule, byHand) => {
    const s = stage(db);
    for (const row of rows) await s.run(row);
    if (paused !== undefined) await s.ask(`pause_job($1, 'ann', NULL, NULL, $2)`, s.job, paused);
    for (const [by, reason] of [
      [false, byRule],
      [true, byHand],
    ] as const) {
      const claim = s.claim({ ...asked, policy: { ...asked.policy, byHand: by } });
      const at = new Date(Date.parse(noon) + 60_000);
      const found = await db.query('SELECT reason FROM cronce.refusal($1, $2, $3)', [
        claim,
        at,
        claim.run.id,
      ]);
      expect(found.map(({ reason: why }) => why as string)).toEqual(reason === null ? [] : [reason]);
    }
  });

  it('names the run in the way, and is never one’s own', async () => {
    const s = stage(db);
    const [lost, id] = [await s.run(over('lost', held)), await s.run(over('failed'))];
    const ask = async (self: string) =>
      db.query('SELECT reason, blocker FROM cronce.refusal($1, now(), $2)', [s.claim(), self]);
    expect(await ask(randomUUID())).toEqual([{ reason: 'on_hold', blocker: lost }]);
    expect(await ask(lost)).toEqual([{ reason: 'duplicate', blocker: id }]);
  });
});

describe('claim', () => {
  const skipped = (skip_reason: string, columns: Columns = {}) => ({
    status: 'skipped',
    skip_reason,
    ...columns,
  });
  const failed = { status: 'failed', final: false };
  it.each<[string, Columns[], number]>([
    ['of a new slot', [], 1],
    ['after it was held twice', [skipped('held'), skipped('held')], 1],
    ['after it was given up, too late and paused', [skipped('held', { final: false }), skipped('too_late'), skipped('paused')], 1], // prettier-ignore
    ['after it was missed', [{ status: 'missed' }], 1],
    ['after a failure', [failed], 2],
    ['after a failure, held, and another', [failed, skipped('held'), { ...failed, attempt: 2 }], 3],
    ['after another slot’s failure', [{ ...failed, slot: earlier }], 1],
    ['after another deployment’s failure', [{ ...failed, deployment: 'x' }], 1],
    ['after another job’s failure', [{ ...failed, job: 'x' }], 1],
    ['after one that died', [{}], 2],
  ])('counts attempts, and no skip is one: %s', async (_what, rows, attempt) => {
    const s = stage(db);
    for (const row of rows) await s.run(row);
    const { run } = await s.ask<{ run: unknown }>('claim($1)', s.claim({ lockDelayMs: 0 }));
    expect(run).toMatchObject({ status: 'running', attempt });
  });

  it('made again counts not itself, does not see itself, and takes a place that is free now', async () => {
    const s = stage(db);
    const keys = [s.key, (BigInt(s.key) + 1n).toString()];
    await holding(db, {}, async (by) => {
      const first = s.claim({ lock: { keys } });
      const made = await askBy<{ run: Columns }>(by, 'claim($1)', first);
      expect(made.run).toMatchObject({ attempt: 1, fence: '1', lockKey: s.key });
      await by.session.query('COMMIT; BEGIN ISOLATION LEVEL READ COMMITTED');
      const again = await askBy<{ run: Columns }>(by, 'claim($1)', { ...first, again: true });
      expect(again.run).toMatchObject({ id: first.run.id, attempt: 1, fence: '2', lockKey: s.key });
      await by.session.query('COMMIT; BEGIN ISOLATION LEVEL READ COMMITTED');
      await holding(db, { keys: [s.key] }, async () => {
        const moved = await askBy<{ run: Columns }>(by, 'claim($1)', { ...first, again: true });
        expect(moved.run).toMatchObject({ id: first.run.id, attempt: 1, fence: '1', lockKey: keys[1] });
        await by.session.query('COMMIT');
      });
      expect(await s.row(first.run.id), 'kept with its record').toMatchObject({
        lock_key: keys[1],
        fence: '1',
      });
    });
  });

  it.each(['cancelled', 'lost'])(
    'made again for a run that was %s meanwhile leaves it so',
    async (status) => {
      const s = stage(db);
      const id = await s.run({ status, final: true, delay_until: 'infinity' });
      const answer = await s.ask('claim($1)', s.claim({ again: true, run: { id } }));
      expect(answer).toMatchObject({ run: { id, status }, restMs: 0, settled: [] });
      expect((await s.row(id))['delay'], 'its work never began').toBe('none');
    },
  );

  it('made again after a T0 that left nothing is a first one', async () => {
    const s = stage(db);
    const { run } = await s.ask<{ run: Columns }>('claim($1)', s.claim({ again: true }));
    expect(run).toMatchObject({ status: 'running', attempt: 1 });
  });

  const lost = { status: 'lost', final: false };
  it.each<[string, Columns, Columns, Columns]>([
    ['with time for it', { ...lost, delay_until: 'infinity' }, {}, { status: 'running', final: null }],
    ['with too little for it', { ...lost, delay_until: 'infinity' }, { timeLeftMs: 70_000 }, { status: 'skipped', skipReason: 'held', final: false, delayedMs: null, attempt: null }], // prettier-ignore
    ['with little time in any case', { ...lost, delay_until: 'infinity' }, { timeLeftMs: 30_000 }, { status: 'running' }], // prettier-ignore
    ['with no time', { ...lost, delay_until: 'infinity' }, { timeLeftMs: 15_000 }, { status: 'skipped', final: false }], // prettier-ignore
    ['of the dead that it settles', {}, {}, { status: 'running' }],
    ['over', { ...lost, delay_until: after(-1_000) }, {}, { status: 'running', delayedMs: null }],
  ])('a lock delay %s', async (_what, row, asked, made) => {
    const s = stage(db);
    await s.run({ slot: earlier, ...row });
    const { run, restMs } = await s.ask<{ run: Columns; restMs: number }>('claim($1)', s.claim(asked));
    expect(run).toMatchObject(made);
    const waits = made['status'] === 'running' && made['delayedMs'] === undefined;
    if (waits) expect(restMs).toBeGreaterThan(10_000);
    else expect(restMs).toBe(0);
    if (waits) expect(run['delayedMs']).toBe(restMs);
  });

  type Made = { run: Columns; restMs: number; settled: Columns[]; slot?: string };

  it('settles the dead of its lock and of its slot, and no others', async () => {
    const s = stage(db);
    const [ofLock, ofSlot, other] = [
      await s.run({ slot: earlier, guard_key: 5 }),
      await s.run({ lock_key: 91 }),
      await s.run({ slot: later, lock_key: 92, guard_key: 6 }),
    ];
    const { settled } = await s.ask<Made>('claim($1)', s.claim());
    expect(settled.map(({ id }) => id).sort()).toEqual([ofLock, ofSlot].sort());
    expect(await s.row(other)).toMatchObject({ status: 'running' });
  });

  it('does not run beside a fenced transaction that nobody may end: the slot stays owed', async () => {
    const s = stage(db);
    const dead = await s.run({ slot: earlier });
    const fenced = await s.ask<string>('fenced_key($1)', dead);
    await holding(db, { shared: [fenced], url: db.superuserUrl }, async () =>
      holding(db, {}, async (by) => {
        expect(await askBy<Made>(by, 'claim($1)', s.claim())).toMatchObject({
          run: { status: 'skipped', skipReason: 'held', final: false, blockedBy: dead },
          settled: [],
        });
      }),
    );
  });

  it.each<[string, Columns[], Columns]>([
    [
      'by a run of this deployment',
      [{ slot: earlier }],
      { skipReason: 'held', blockedByDeployment: 'default' },
    ],
    ['by another’s', [{ slot: earlier, deployment: 'x' }], { skipReason: 'held', blockedByDeployment: 'x' }],
    ['by a stranger', [], { skipReason: 'held', blockedBy: null, blockedByDeployment: null, final: null }],
    [
      'but its slot has succeeded',
      [{ slot: earlier }, { status: 'succeeded', final: true }],
      { skipReason: 'duplicate' },
    ],
    [
      'and its slot has failed for good',
      [{ slot: earlier }, { status: 'failed', final: true }],
      { skipReason: 'duplicate' },
    ],
  ])('held %s', async (_what, rows, made) => {
    const s = stage(db);
    await holding(db, { keys: [s.key] }, async ({ pid }) => {
      for (const row of rows) await s.run({ backend_pid: pid, guard_key: 5, ...row });
      const { run } = await s.ask<Made>('claim($1)', s.claim());
      expect(run).toMatchObject({ status: 'skipped', attempt: null, fence: null, lockKey: null, ...made });
    });
  });

  it('with nobody behind a held lock is patient for a moment', async () => {
    const s = stage(db);
    await holding(db, { keys: [s.key] }, async (by) => {
      const claiming = s.ask<Made>('claim($1)', s.claim({ lock: { patienceMs: 20_000 } }));
      const asksAgain = () =>
        db.query(`SELECT 1 FROM pg_stat_activity WHERE query LIKE '%claim($1)%' AND wait_event = 'PgSleep'`);
      await expect.poll(asksAgain, { interval: 5, timeout: 10_000 }).toHaveLength(1);
      await by.session.query('COMMIT');
      expect((await claiming).run).toMatchObject({ status: 'running' });
    });
  });

  it.each<[string, Columns, Columns, boolean]>([
    ['the same request', {}, {}, true],
    ['another request', {}, { deliveryId: 'e' }, false],
    ['a request that was not guessed', { slot_guessed: false }, {}, false],
    ['one that is not guessed now', {}, { slotGuessed: false }, false],
    ['another job’s', { job: 'x' }, {}, false],
    ['another deployment’s', { deployment: 'x' }, {}, false],
  ])('guesses a slot once for a request: %s', async (_what, row, asked, known) => {
    const s = stage(db);
    await s.run({ status: 'failed', final: false, slot: earlier, scheduled_for: earlier, delivery_id: 'd', slot_guessed: true, ...row }); // prettier-ignore
    const claim = s.claim({ run: { slotGuessed: true, deliveryId: 'd', ...asked } });
    const answer = await s.ask<Made>('claim($1)', claim);
    expect(answer.slot).toBe(known ? earlier : undefined);
    expect((await s.row(claim.run.id))['id']).toBe(known ? undefined : claim.run.id);
    await db.query('DELETE FROM cronce.run');
  });

  it.each([
    [true, earlier],
    [false, noon],
  ])(
    'a manual run is due when it was first asked for (time guessed: %s)',
    async (scheduledForGuessed, due) => {
      const s = stage(db);
      await s.run({ status: 'failed', final: false, scheduled_for: earlier });
      const claim = s.claim({ run: { scheduledForGuessed } });
      await s.ask('claim($1)', claim);
      expect(await s.row(claim.run.id)).toMatchObject({ scheduled_for: new Date(due) });
    },
  );

  it.each([true, false])('marks the lock of a single slot as one (%s)', async (ofSlot) => {
    const s = stage(db);
    const key = ofSlot ? s.guard : s.key;
    await s.ask('claim($1)', s.claim({ lock: { keys: [key] } }));
    expect(await db.query('SELECT of_slot FROM cronce.lock WHERE key = $1', [key])).toEqual([
      { of_slot: ofSlot },
    ]);
  });

  it.each([
    ['seen long ago', '-infinity', 15_000, 0],
    ['seen a day ago', after(-86_500_000), 15_000, 0],
    ['seen 5 s ago', after(-5_000), 15_000, 10_000],
    ['seen 5 s ago, without a delay', after(-5_000), 0, 0],
    ['never seen', null, 15_000, 15_000],
  ])(
    'after a failover waits for what it may have forgotten: a timeline %s',
    async (_what, first_seen_at, lockDelayMs, restMs) => {
      const s = stage(db);
      const id = await s.ask('timeline()');
      await db.query('DELETE FROM cronce.timeline');
      if (first_seen_at !== null) await s.insert('timeline', { id, first_seen_at });
      const made = await s.ask<Made>('claim($1)', s.claim({ lockDelayMs }));
      await db.query('DELETE FROM cronce.timeline');
      await s.insert('timeline', { id, first_seen_at: '-infinity' });
      expect(made.restMs).toBeLessThanOrEqual(restMs);
      if (restMs > 0) expect(made.restMs).toBeGreaterThan(restMs - 5_000);
      expect(made.run).toMatchObject({ status: 'running', fence: '1' });
    },
  );

  it('never overwrites what a run has become', async () => {
    const s = stage(db);
    const id = await s.run({ status: 'cancelled', final: true });
    const call = 'record(cronce.start_run($1, now(), $2, 0, NULL, 1, true, false))';
    expect(await s.ask(call, s.claim({ run: { id } }), s.key)).toMatchObject({ id, status: 'cancelled' });
    expect(await s.row(id)).toMatchObject({ status: 'cancelled', fence: '1' });
  });

  it('is as durable, and as bound to its client, as what it says', async () => {
    const s = stage(db);
    await holding(db, {}, async (by) => {
      await askBy(by, 'keep_session(9000)'); // as T0's message has it, a statement before its claim
      await askBy(by, 'claim($1)', s.claim({ leaseMs: 9_000 }));
      expect(await kept(by)).toEqual(keptFor(9, 'local'));
    });
  });
});

/** What our functions set for the rest of a transaction. */
async function kept({ session }: Holder): Promise<Record<string, string>> {
  const names = Object.keys(keptFor(1, ''));
  const { rows } = await session.query<{ name: string; value: string }>(
    'SELECT name, current_setting(name) AS value FROM unnest($1::text[]) name',
    [names],
  );
  return Object.fromEntries(rows.map(({ name, value }) => [name, value]));
}

function keptFor(seconds: number, synchronous_commit: string): Record<string, string> {
  return {
    tcp_keepalives_idle: String(seconds),
    tcp_keepalives_interval: String(Math.max(1, Math.floor(seconds / 3))),
    tcp_keepalives_count: '3',
    tcp_user_timeout: String(seconds * 1_000),
    client_connection_check_interval: '500ms',
    synchronous_commit,
  };
}

describe('in each transaction COMMIT is durable, and a dead client is noticed', () => {
  const before = 'off';
  it.each<[string, number | null, string, (s: ReturnType<typeof stage>) => Promise<unknown[]>]>([
    ['enter($1)', 9, before, async (s) => [await s.run({ lease_ms: 9_000 })]],
    ['begin_fenced($1, 9000)', 9, 'local', async (s) => [await s.run()]],
    ['finish($1)', null, 'local', async (s) => [{ id: await s.run(), status: 'failed', final: false }]],
    ['settle($1)', null, 'local', async (s) => [{ id: await s.run(), status: 'failed', final: false }]],
    ['request_cancel($1, $2)', null, 'local', async (s) => [await s.run(), 'ann']],
    ['turn_away($1, $2)', null, 'local', (s) => Promise.resolve([s.claim(), 'why'])],
    ['refuse($1, $2)', null, 'local', (s) => Promise.resolve([s.claim(), { name: 'E', message: 'm' }])],
    ['account($1)', null, 'local', (s) => Promise.resolve([{ job: s.job, slots: [] }])],
  ])('%s', async (call, seconds, durability, values) => {
    const s = stage(db);
    const given = await values(s);
    await holding(db, {}, async (by) => {
      await askBy(by, call, ...given);
      const { synchronous_commit, ...session } = await kept(by);
      expect(synchronous_commit).toBe(durability);
      const { synchronous_commit: _, ...wanted } = keptFor(seconds ?? 1, '');
      if (seconds !== null) expect(session).toEqual(wanted);
    });
  });

  it.each(['on', 'local', 'remote_write'])('what is %s stays so', async (stricter) => {
    await holding(db, {}, async (by) => {
      await by.session.query(`SET LOCAL synchronous_commit = ${stricter}`);
      await askBy(by, 'demand_durability()');
      expect(await kept(by)).toMatchObject({ synchronous_commit: stricter });
    });
  });

  it('a lease is never shorter to the network than it is: rounded up', async () => {
    await holding(db, {}, async (by) => {
      await askBy(by, 'keep_session(2001)');
      expect(await kept(by)).toEqual(keptFor(3, 'off'));
    });
  });
});

describe('enter', () => {
  it.each<[string, Columns, Columns, boolean]>([
    ['stands', {}, {}, true],
    ['of before guards', { guard_key: null }, {}, true],
    ['a higher fence', {}, { fence: 2 }, false],
    ['another run’s fence', {}, { run_id: randomUUID() }, false],
    ['settled', { status: 'cancelled', final: true }, {}, false],
  ])('%s', async (_what, row, lock, entered) => {
    const s = stage(db);
    const id = await s.run(row);
    await s.lock({ run_id: id, of_slot: false, ...lock });
    await holding(db, {}, async (by) => {
      expect(await askBy(by, 'enter($1)', id)).toEqual({ entered, pid: by.pid, lease: '0' });
      const { keys, tables } = await locksOf(db, by);
      expect(keys.sort()).toEqual(
        (entered ? [s.key, ...(row['guard_key'] === null ? [] : [s.guard])] : []).sort(),
      );
      expect(tables, 'T1 keeps no lock on our tables').toEqual([]);
    });
  });

  it.each(['key', 'guard'] as const)('waits for its %s, and looks again once it has it', async (which) => {
    const s = stage(db);
    const id = await s.run();
    await holding(db, { keys: [s[which]] }, async (first) =>
      holding(db, {}, async (by) => {
        const entering = askBy(by, 'enter($1)', id);
        entering.catch(() => undefined);
        const blocked = () => db.query('SELECT 1 FROM pg_locks WHERE pid = $1 AND NOT granted', [by.pid]);
        await expect.poll(blocked, { interval: 5 }).toHaveLength(1);
        await s.lock({ fence: 2, run_id: randomUUID(), of_slot: false });
        await first.session.query('COMMIT');
        expect(await entering).toMatchObject({ entered: false });
      }),
    );
  });
});

describe('next_fence', () => {
  const range = 2 ** 32;
  it.each<[string, number | null, number, number]>([
    ['of a new lock', null, 1, 1],
    ['of a known one', 7, 1, 8],
    ['of a new lock on the second timeline', null, 2, range + 1],
    ['after a failover, whatever was forgotten', 7, 2, range + 1],
    ['on a timeline that has begun', range + 1, 2, range + 2],
    ['after another failover', range + 9, 3, 2 * range + 1],
  ])('%s', async (_what, last, timeline, next) => {
    const s = stage(db);
    if (last !== null) await s.lock({ fence: last, run_id: randomUUID(), of_slot: false });
    const self = randomUUID();
    const leastFence = (timeline - 1) * range + 1;
    const given = await s.ask('next_fence($1, $2, true, $3, $4)', s.key, s.job, self, leastFence);
    expect(given).toBe(String(next));
    expect(
      await db.query('SELECT fence, run_id, of_slot, name FROM cronce.lock WHERE key = $1', [s.key]),
    ).toEqual([{ fence: String(next), run_id: self, of_slot: true, name: s.job }]);
  });
});

describe('ask_to_give_way', () => {
  it.each<[string, Columns, boolean]>([
    ['an earlier slot of the job', {}, true],
    ['of the same time', { slot: 'manual:x', scheduled_for: noon }, true],
    ['on another place', { lock_key: '55' }, true],
    ['another job that shares the lock', { job: 'another' }, false],
    ['another deployment’s', { deployment: 'another' }, false],
    ['a later slot', { scheduled_for: later }, false],
    ['its own duplicate', { slot: noon }, false],
    ['under a lock that is not in the way', { lock_key: '56' }, false],
    ['one that is over', { status: 'failed', final: false }, false],
  ])('%s', async (_what, row, ends) => {
    const s = stage(db);
    await holding(db, { keys: [s.key, ...(row['lock_key'] === '55' ? ['55'] : [])] }, async ({ pid }) => {
      const id = await s.run({ slot: earlier, scheduled_for: earlier, backend_pid: pid, ...row });
      const asked = await s.ask('ask_to_give_way($1, $2, $3, $4, $5)', 'default', s.job, noon, noon, [
        s.key,
        '55',
      ]);
      expect(asked).toBe(ends ? id : null);
      const { cancel_requested_by: by, status } = await s.row(id);
      expect(by).toBe(ends ? `the run of ${noon}` : null);
      if (ends) expect(status).toBe('running');
    });
  });

  it('the earliest first', async () => {
    const s = stage(db);
    await holding(db, { keys: [s.key, '57'] }, async ({ pid }) => {
      const at = (slot: string, lock_key: string) =>
        s.run({ slot, scheduled_for: slot, backend_pid: pid, lock_key });
      await at('2026-11-29T11:30:00Z', s.key);
      const first = await at(earlier, '57');
      expect(await s.ask('ask_to_give_way($1, $2, $3, $4, $5)', 'default', s.job, noon, noon, [s.key, '57'])).toBe(first); // prettier-ignore
    });
  });
});

it('require_schema: neither older nor newer code than the schema can take', async () => {
  const code = async (version: number) =>
    db.query('SELECT cronce.require_schema($1)', [version]).then(
      () => 'fits',
      (error: unknown) => (error as pg.DatabaseError).code,
    );
  expect([await code(2), await code(3), await code(schemaVersion + 1)]).toEqual(['CR001', 'fits', 'CR002']);
});
