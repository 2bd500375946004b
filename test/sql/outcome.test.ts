import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import {
  after,
  holder,
  holding,
  locksOf,
  nobody,
  stage,
  type Columns,
  type Row,
  type Stage,
} from '../support/rows.ts';

/** How a run ends, function by function, on rows made by hand. `delay` is in s; that of these rows is 20 s. */
let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

const asked = { cancel_requested_at: after(-1_000), cancel_requested_by: 'ann' };

async function ended(s: Stage, id: string) {
  const { status, final, delay } = await s.row(id);
  return { status, final, delay: Number(delay) > 15 ? 'begun' : delay };
}

function expectTellableLater(row: Row): void {
  expect(row['published_at'], 'nobody was told yet').toBeNull();
  const inMs = (row['publish_after'] as Date).getTime() - Date.now();
  expect(inMs, 'left to its own invocation for half a minute').toBeGreaterThan(20_000);
  expect(inMs).toBeLessThanOrEqual(30_000);
}

describe('settle', () => {
  const own = { own: true };
  it.each<[string, Columns, Columns, readonly [status: string, final: boolean, delay: string]]>([
    ['by its own hand: it has stopped', {}, { ...own, status: 'failed' }, ['failed', false, 'none']],
    ['of someone else', {}, { status: 'failed' }, ['failed', false, 'begun']],
    ['said not to be its own', {}, { own: false, status: 'lost' }, ['lost', false, 'begun']],
    ['of one without a delay', { lock_delay_ms: 0 }, { status: 'lost' }, ['lost', false, 'none']],
    ['of one of before delays', { lock_delay_ms: null }, { status: 'lost' }, ['lost', false, 'none']],
    ['of the last attempt', { attempt: 3 }, { ...own, status: 'failed' }, ['failed', true, 'none']],
    ['of one attempt before', { attempt: 2 }, { ...own, status: 'failed' }, ['failed', false, 'none']],
    ['of one attempt too many', { attempt: 4 }, { ...own, status: 'timed_out' }, ['timed_out', true, 'none']],
    ['lost, to be held', { after_lost: 'hold' }, { ...own, status: 'lost' }, ['lost', true, 'none']],
    ['failed, where only a lost one is held', { after_lost: 'hold' }, { ...own, status: 'failed' }, ['failed', false, 'none']], // prettier-ignore
    ['a permanent error', {}, { ...own, status: 'failed', final: true }, ['failed', true, 'none']],
    ['cancelled', {}, { ...own, status: 'cancelled' }, ['cancelled', true, 'none']],
    ['lost, but a cancel was asked', asked, { ...own, status: 'lost' }, ['cancelled', true, 'none']],
    ['failed, but a cancel was asked', asked, { status: 'failed' }, ['cancelled', true, 'begun']],
  ])('%s', async (_what, row, verdict, [status, final, delay]) => {
    const s = stage(db);
    const id = await s.run(row);
    const error = { name: 'Error', message: 'why' };
    expect(await s.ask('settle($1)', { id, final: false, error, ...verdict })).toMatchObject({ id, status });
    expect(await ended(s, id)).toEqual({ status, final, delay });
    expect(await s.row(id)).toMatchObject({ error });
    expectTellableLater(await s.row(id));
  });

  it.each(['succeeded', 'failed', 'lost', 'cancelled'])('leaves one that stands as %s', async (status) => {
    const s = stage(db);
    const id = await s.run({ status, final: true, error: { message: 'first' } });
    const before = await s.row(id);
    expect(await s.ask('settle($1)', { id, status: 'failed', final: false })).toMatchObject({ status });
    expect(await s.row(id)).toEqual(before);
  });

  it.each([
    [true, 'infinity', 'none'],
    [true, after(20_000), 'none'],
    [false, 'infinity', 'unbegun'],
    [false, after(20_000), 'begun'],
  ])(
    'one that has heard of its end (%s) has surely stopped: delay until %s, then %s',
    async (own, until, delay) => {
      const s = stage(db);
      const id = await s.run({ status: 'cancelled', final: true, delay_until: until });
      const bystander = await s.run({ status: 'lost', final: false, delay_until: until });
      await s.ask('settle($1)', { id, own, status: 'lost', final: false });
      expect(await ended(s, id)).toEqual({ status: 'cancelled', final: true, delay });
      expect((await ended(s, bystander)).delay).not.toBe('none');
    },
  );

  it('keeps to the clock that it is given, but never ends before the start; a null error is none', async () => {
    const s = stage(db);
    const id = await s.run({ started_at: '2030-01-01T00:00:00Z' });
    await s.ask('settle($1)', {
      id,
      own: true,
      status: 'failed',
      final: false,
      error: null,
      now: '2029-01-01T00:00:00Z',
    });
    expect(await s.row(id)).toMatchObject({ finished_at: new Date('2030-01-01T00:00:00Z'), error: null });
  });

  it('knows of no run that never was', async () => {
    expect(await stage(db).ask('settle($1)', { id: randomUUID(), status: 'lost' })).toBeNull();
  });

  it('ends the holder, and begins the delay once the lock is free of it', async () => {
    const s = stage(db);
    await holding(db, { keys: [s.guard, s.key] }, async (by) => {
      const id = await s.run({ backend_pid: by.pid });
      await s.ask('settle($1)', { id, status: 'cancelled', final: true });
      expect(await by.isThere()).toBe(false);
      expect(await ended(s, id)).toEqual({ status: 'cancelled', final: true, delay: 'begun' });
    });
  });
});

describe('settle_dead', () => {
  it.each<[string, Columns, number, readonly [status: string, final: boolean | null, delay: string]]>([
    ['one that is gone', {}, 1, ['lost', false, 'begun']],
    ['without a delay', { lock_delay_ms: 0 }, 1, ['lost', false, 'none']],
    ['on hold', { after_lost: 'hold' }, 1, ['lost', true, 'begun']],
    ['at its last attempt', { attempt: 3 }, 1, ['lost', true, 'begun']],
    ['one that was to be cancelled', asked, 1, ['cancelled', true, 'begun']],
    ['one that claimed anew', { fence: 2 }, 1, ['running', null, 'none']],
    ['one of an older fence', { fence: 1 }, 2, ['running', null, 'none']],
    ['a success', { status: 'succeeded', final: true }, 1, ['succeeded', true, 'none']],
    ['a failure', { status: 'failed', final: false }, 1, ['failed', false, 'none']],
    ['a cancelled one', { status: 'cancelled', final: true }, 1, ['cancelled', true, 'none']],
  ])('%s', async (_what, row, fence, [status, final, delay]) => {
    const s = stage(db);
    const id = await s.run(row);
    const settled = await db.query(`SELECT id FROM cronce.settle_dead($1, $2, now(), 'gone')`, [
      [id],
      [fence],
    ]);
    expect(await ended(s, id)).toEqual({ status, final, delay });
    const changed = delay === 'begun' || status === 'lost';
    expect(settled).toEqual(changed ? [{ id }] : []);
    if (!changed) return;
    expect(await s.row(id)).toMatchObject({ error: { name: 'HolderGone', message: 'gone' } });
    expectTellableLater(await s.row(id));
  });

  it('each with its own fence, and none besides', async () => {
    const s = stage(db);
    const ids = [await s.run({ fence: 3 }), await s.run({ fence: 4 }), await s.run({ fence: 5 })];
    await db.query(`SELECT cronce.settle_dead($1, $2, now(), 'gone')`, [
      [ids[1], ids[0]],
      [4, 4],
    ]);
    const states = await Promise.all(ids.map(async (id) => (await ended(s, id)).status));
    expect(states).toEqual(['running', 'lost', 'running']);
  });

  it('of none settles none', async () => {
    expect(await db.query(`SELECT id FROM cronce.settle_dead(NULL, NULL, now(), 'x')`)).toEqual([]);
  });
});

describe('finish', () => {
  /** In T1, as it is then: the outcome is committed only where nothing was raised. */
  async function finish(s: Stage, verdict: Columns): Promise<string> {
    return holding(db, {}, async ({ session }) => {
      try {
        await session.query('SELECT cronce.finish($1)', [{ final: false, ...verdict }]);
        await session.query('COMMIT');
        return 'committed';
      } catch (error) {
        return String((error as { code?: string }).code);
      }
    });
  }

  it.each<[string, Columns, Columns, readonly [status: string, final: boolean, delay: string]]>([
    ['a success', {}, { status: 'succeeded' }, ['succeeded', true, 'none']],
    ['a failure', {}, { status: 'failed' }, ['failed', false, 'none']],
    ['a permanent one', {}, { status: 'failed', final: true }, ['failed', true, 'none']],
    ['the last attempt', { attempt: 3 }, { status: 'timed_out' }, ['timed_out', true, 'none']],
    ['the last but one', { attempt: 2 }, { status: 'timed_out' }, ['timed_out', false, 'none']],
    ['lost, to be held', { after_lost: 'hold' }, { status: 'lost' }, ['lost', true, 'none']],
    ['failed, where a lost one is held', { after_lost: 'hold' }, { status: 'failed' }, ['failed', false, 'none']], // prettier-ignore
    ['cancelled', {}, { status: 'cancelled' }, ['cancelled', true, 'none']],
    ['a failure after a cancel', asked, { status: 'failed' }, ['cancelled', true, 'none']],
    ['cut off', {}, { own: false, status: 'timed_out' }, ['timed_out', false, 'unbegun']],
    ['cut off without a delay', { lock_delay_ms: 0 }, { own: false, status: 'timed_out' }, ['timed_out', false, 'none']], // prettier-ignore
    ['by its own hand', {}, { own: true, status: 'timed_out' }, ['timed_out', false, 'none']],
  ])('%s', async (_what, row, verdict, [status, final, delay]) => {
    const s = stage(db);
    const id = await s.run(row);
    expect(await finish(s, { id, output: 1, ...verdict })).toBe('committed');
    expect(await ended(s, id)).toEqual({ status, final, delay });
    expectTellableLater(await s.row(id));
  });

  it.each<[string, Columns, Columns, string]>([
    ['a higher fence', {}, { fence: 2 }, 'CR004'],
    ['the same fence, but another run’s', {}, { run_id: randomUUID() }, 'CR004'],
    ['settled meanwhile', { status: 'lost', final: false }, {}, 'CR004'],
    ['a success whose end was asked for', asked, {}, 'CR006'],
  ])('is refused: %s', async (_what, row, lock, code) => {
    const s = stage(db);
    const id = await s.run(row);
    await s.lock({ run_id: id, of_slot: false, ...lock });
    const before = await s.row(id);
    expect(await finish(s, { id, status: 'succeeded' })).toBe(code);
    expect(await s.row(id)).toEqual(before);
  });

  it('never ends before its start, whatever the clock says', async () => {
    const s = stage(db);
    const id = await s.run({ started_at: '2030-01-01T00:00:00Z' });
    expect(await finish(s, { id, status: 'failed', now: '2029-01-01T00:00:00Z' })).toBe('committed');
    expect(await s.row(id)).toMatchObject({ finished_at: new Date('2030-01-01T00:00:00Z') });
  });

  it('is refused a second success of its slot', async () => {
    const s = stage(db);
    await s.run({ status: 'succeeded', final: true });
    const id = await s.run();
    expect(await finish(s, { id, status: 'succeeded' })).toBe('23505');
  });
});

describe('end_holder', () => {
  it.each<[string, Columns, Columns, ('key' | 'guard' | 'other')[], boolean]>([
    ['the holder', {}, {}, ['key', 'guard'], true],
    ['one of before guards', { guard_key: null }, {}, ['key'], true],
    ['a stranger that got the backend from a pooler', {}, {}, [], false],
    ['one with a lock of its own', {}, {}, ['other', 'guard'], false],
    ['one with the lock, for another slot', {}, {}, ['key', 'other'], false],
    ['a successor', {}, { fence: 2 }, ['key', 'guard'], false],
    ['another run of that fence', {}, { run_id: randomUUID() }, ['key', 'guard'], false],
  ])('%s', async (_what, row, lock, locks, isEnded) => {
    const s = stage(db);
    const keys = locks.map((name) => ({ key: s.key, guard: s.guard, other: '77' })[name]);
    await holding(db, { keys }, async (by) => {
      const id = await s.run({ backend_pid: by.pid, ...row });
      await s.lock({ run_id: id, of_slot: false, ...lock });
      expect(await s.askOf(id, 'end_holder(r)')).toBe(isEnded);
      if (isEnded) await expect.poll(() => by.isThere()).toBe(false);
      else expect(await by.isThere()).toBe(true);
    });
  });

  it('never itself', async () => {
    const s = stage(db);
    await holding(db, { keys: [s.key, s.guard] }, async (by) => {
      const id = await s.run({ backend_pid: by.pid });
      const { rows } = await by.session.query(
        'SELECT cronce.end_holder(r) AS ended FROM cronce.run r WHERE id = $1',
        [id],
      );
      expect(rows).toEqual([{ ended: false }]);
    });
  });

  it('says so of a session that it may not end', async () => {
    const s = stage(db);
    await holding(db, { keys: [s.key, s.guard], url: db.superuserUrl }, async (by) => {
      const id = await s.run({ backend_pid: by.pid });
      await holding(db, {}, async ({ session }) => {
        const { rows } = await session.query(
          'SELECT cronce.end_holder(r) AS ended FROM cronce.run r WHERE id = $1',
          [id],
        );
        expect(rows).toEqual([{ ended: false }]);
      });
    });
  });
});

describe('the lock delay', () => {
  it.each([
    ['not found free yet', 'infinity', 'begun'],
    ['begun before', after(5_000), '5'],
    ['none', null, 'none'],
  ])('begin_delay: %s', async (_what, delay_until, delay) => {
    const s = stage(db);
    const id = await s.run({ status: 'lost', final: false, delay_until });
    const bystander = await s.run({ status: 'lost', final: false, delay_until: 'infinity' });
    await s.askOf(id, 'begin_delay(r)');
    const now = (await ended(s, id)).delay;
    if (delay === '5') expect(Number(now)).toBeLessThanOrEqual(5);
    else expect(now).toBe(delay);
    expect((await ended(s, bystander)).delay).toBe('unbegun');
  });

  it('begin_delay: not while the backend holds the lock', async () => {
    const s = stage(db);
    await holding(db, { keys: [s.key] }, async (by) => {
      const id = await s.run({
        status: 'lost',
        final: false,
        delay_until: 'infinity',
        backend_pid: by.pid,
      });
      await s.askOf(id, 'begin_delay(r)');
      expect((await ended(s, id)).delay).toBe('unbegun');
    });
  });

  const past = (columns: Columns) => ({ status: 'lost', final: false, ...columns });
  it.each<[string, Columns[], number]>([
    ['of nobody', [], 0],
    ['of one that has stopped', [past({})], 0],
    ['that is over', [past({ delay_until: after(-1) })], 0],
    ['of this lock', [past({ delay_until: after(60_000), guard_key: 5 })], 60],
    ['of this slot', [past({ delay_until: after(60_000), lock_key: 5 })], 60],
    ['of others', [past({ delay_until: after(60_000), lock_key: 5, guard_key: 6 })], 0],
    [
      'the longest',
      [past({ delay_until: after(60_000) }), past({ delay_until: after(30_000), lock_key: 5 })],
      60,
    ],
    ['that begins now', [past({ delay_until: 'infinity', guard_key: 5 })], 20],
    ['that begins now, of the slot', [past({ delay_until: 'infinity', lock_key: 5 })], 20],
    [
      'one that begins now, and a longer one',
      [past({ delay_until: 'infinity' }), past({ delay_until: after(60_000) })],
      60,
    ],
  ])('delay_of: %s', async (_what, rows, seconds) => {
    const s = stage(db);
    const ids: string[] = [];
    for (const row of rows) ids.push(await s.run(row));
    const other = await s.run({ ...past({ delay_until: 'infinity' }), lock_key: 7, guard_key: 8 });
    const [found] = await db.query('SELECT ms, blocker FROM cronce.delay_of($1, $2, $3)', [
      s.key,
      s.guard,
      randomUUID(),
    ]);
    if (seconds === 0) expect(found).toBeUndefined();
    else {
      expect(Math.round(Number(found?.['ms']) / 1_000)).toBeGreaterThan(seconds - 15);
      expect(Number(found?.['ms'])).toBeLessThanOrEqual(seconds * 1_000);
      expect(ids).toContain(found?.['blocker']);
      for (const id of ids) expect((await ended(s, id)).delay).not.toBe('unbegun');
    }
    expect((await ended(s, other)).delay).toBe('unbegun');
  });

  it('delay_of: not one’s own', async () => {
    const s = stage(db);
    const id = await s.run(past({ delay_until: after(60_000) }));
    expect(await db.query('SELECT ms FROM cronce.delay_of($1, $2, $3)', [s.key, s.guard, id])).toEqual([]);
  });
});

describe('fenced', () => {
  it.each<[string, Columns, Columns, boolean]>([
    ['stands', {}, {}, true],
    ['a higher fence', {}, { fence: 2 }, false],
    ['the same fence, but another run’s', {}, { run_id: randomUUID() }, false],
    ['settled', { status: 'cancelled', final: true }, {}, false],
  ])('%s: is seen when it begins, and with its COMMIT', async (_what, row, lock, stands) => {
    const s = stage(db);
    const id = await s.run(row);
    await s.lock({ run_id: id, of_slot: false, ...lock });
    const key = await s.ask<string>('fenced_key($1)', id);
    await holding(db, {}, async (by) => {
      const begun = await by.session.query('SELECT cronce.begin_fenced($1, 15000) AS stands', [id]);
      expect(begun.rows).toEqual([{ stands }]);
      expect(await locksOf(db, by), 'keeps its run from ending, and nothing else').toEqual({
        keys: [key],
        tables: [],
      });
      const looked = await by.session.query('SELECT cronce.demand_fence($1)', [id]).then(
        () => 'stands',
        (error: unknown) => (error as { code: string }).code,
      );
      expect(looked).toBe(stands ? 'stands' : 'CR004');
    });
  });

  it('drain: none is there, and none can begin before the caller has ended', async () => {
    const s = stage(db);
    const id = randomUUID();
    const key = await s.ask<string>('fenced_key($1)', id);
    await holding(db, {}, async ({ session }) => {
      await session.query('SELECT cronce.drain($1, 1000)', [id]);
      const tried = 'SELECT pg_try_advisory_xact_lock_shared($1) AS had';
      expect(await db.query(tried, [key])).toEqual([{ had: false }]);
      await session.query('COMMIT');
      expect(await db.query(tried, [key])).toEqual([{ had: true }]);
    });
  });

  it('drain: one that is committing gets its moment', async () => {
    const s = stage(db);
    const id = randomUUID();
    const by = await holder(db, { shared: [await s.ask<string>('fenced_key($1)', id)] });
    const drained = s.ask('drain($1, 5000)', id);
    await expect
      .poll(
        async () =>
          db.query(
            `SELECT 1 FROM pg_stat_activity WHERE query LIKE '%drain($1, 5000)%' AND state = 'active' AND pid <> pg_backend_pid()`,
          ),
        { interval: 5 },
      ) // prettier-ignore
      .toHaveLength(1);
    expect((await by.session.query('COMMIT')).command).toBe('COMMIT');
    expect(await drained).toBe(true);
    await by.end();
  });

  it.each([
    ['one that goes on is ended', true],
    ['whoever else ends that run is not', false],
  ])('drain: %s', async (_what, shared) => {
    const s = stage(db);
    const id = randomUUID();
    const key = await s.ask<string>('fenced_key($1)', id);
    await holding(db, shared ? { shared: [key] } : { keys: [key] }, async (by) => {
      expect(await s.ask('drain($1, $2)', id, shared ? 5_000 : 800)).toBe(shared);
      if (shared) await expect.poll(() => by.isThere()).toBe(false);
      else expect(await by.isThere()).toBe(true);
    });
  });

  it('drain: of another role’s session says in time that it could not', async () => {
    const s = stage(db);
    const id = randomUUID();
    const key = await s.ask<string>('fenced_key($1)', id);
    await holding(db, { shared: [key], url: db.superuserUrl }, async (by) => {
      await holding(db, {}, async ({ session }) => {
        const { rows } = await session.query('SELECT cronce.drain($1, 600) AS drained', [id]);
        expect(rows).toEqual([{ drained: false }]);
      });
      expect(await by.isThere()).toBe(true);
    });
  });

  it.each(['finish', 'settle', 'settle_dead'])('%s ends what still goes on for its run', async (by) => {
    const s = stage(db);
    const id = await s.run();
    await holding(db, { shared: [await s.ask<string>('fenced_key($1)', id)] }, async (beside) => {
      if (by === 'settle_dead') await s.ask(`settle_dead($1, '{1}', now(), 'gone')`, [id]);
      else await s.ask(`${by}($1)`, { id, status: 'failed', final: false });
      await expect.poll(() => beside.isThere()).toBe(false);
      expect((await s.row(id))['status']).not.toBe('running');
    });
  });
});

describe('request_cancel', () => {
  it('is kept for its holder, and the first who asks is named', async () => {
    const s = stage(db);
    await holding(db, { keys: [s.key] }, async ({ pid }) => {
      const id = await s.run({ backend_pid: pid });
      await s.ask('request_cancel($1, $2)', id, 'ann');
      const { cancel_requested_at: at } = await s.row(id);
      expect(await s.ask('request_cancel($1, $2)', id, 'bob')).toMatchObject({
        status: 'running',
        cancelRequestedBy: 'ann',
      });
      expect((await s.row(id))['cancel_requested_at']).toEqual(at);
    });
  });

  it.each<[string, Columns, Columns]>([
    ['that nobody holds', {}, { status: 'cancelled', final: true, cancelRequestedBy: 'ann' }],
    ['that is over', { status: 'failed', final: false }, { status: 'failed', cancelRequestedBy: null }],
    ['that was skipped', { status: 'skipped' }, { status: 'skipped', cancelRequestedBy: null }],
  ])('of a run %s', async (_what, row, answer) => {
    const s = stage(db);
    const id = await s.run(row);
    expect(await s.ask('request_cancel($1, $2)', id, 'ann')).toMatchObject(answer);
  });

  it('of a run that never was answers nothing', async () => {
    expect(await stage(db).ask('request_cancel($1, $2)', randomUUID(), 'ann')).toBeNull();
  });
});

describe('turn_away', () => {
  const holdersOf = {
    'one that runs': { status: 'running' },
    'one that may still be at work': { status: 'lost', final: false, delay_until: 'infinity' },
    'one that has stopped': { status: 'failed', final: false },
    'one of another lock': { status: 'running', lock_key: 5 },
  };
  it.each(Object.entries(holdersOf))(
    'leaves the slot owed, and names who stands there: %s',
    async (which, row) => {
      const s = stage(db);
      const other = await s.run({ slot: '2026-11-29T11:00:00Z', backend_pid: nobody, ...row });
      const claim = s.claim();
      const named = which === 'one that runs' || which === 'one that may still be at work';
      expect(await s.ask('turn_away($1, $2)', claim, 'no way through')).toMatchObject({
        id: claim.run.id,
        status: 'skipped',
        skipReason: 'held',
        final: false,
        attempt: null,
        fence: null,
        lockKey: null,
        blockedBy: named ? other : null,
        error: { name: 'NotClaimed', message: 'no way through' },
      });
    },
  );

  it('of a run that had to give way is said of its own record', async () => {
    const s = stage(db);
    const id = await s.run();
    const answer = await s.ask('turn_away($1, $2)', s.claim({ again: true, run: { id } }), 'why');
    expect(answer).toMatchObject({ id, status: 'skipped', blockedBy: null, attempt: null, final: false });
  });

  it.each(['cancelled', 'lost'])('answers a run that was %s meanwhile as it stands', async (status) => {
    const s = stage(db);
    const id = await s.run({ status, final: true, delay_until: 'infinity' });
    const answer = await s.ask('turn_away($1, $2)', s.claim({ again: true, run: { id } }), 'why');
    expect(answer).toMatchObject({ id, job: s.job, status, error: null });
    expect((await ended(s, id)).delay, 'its work never began').toBe('none');
  });
});

it('refuse: fails for good, once, without a lock or a fence of it', async () => {
  const s = stage(db);
  const { lock: _, ...claim } = s.claim();
  const answer = await s.ask(
    'refuse($1, $2)',
    { ...claim, lock: { name: s.job } },
    { name: 'E', message: 'm' },
  );
  expect(answer).toMatchObject({
    ...{ status: 'failed', final: true, attempt: 1, maxAttempts: 1, fence: '0', lockKey: null },
    error: { name: 'E', message: 'm' },
  });
  expect(await db.query('SELECT 1 FROM cronce.lock WHERE name = $1', [s.job])).toEqual([]);
  expectTellableLater(await s.row(String(answer['id'])));
});
