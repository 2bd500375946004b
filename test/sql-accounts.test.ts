import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { freshDatabase, type TestDatabase } from './support/database.ts';
import { after, fromNow, holding, noon, stage, type Columns, type Row, type Stage } from './support/rows.ts';

/** What is owed, what is kept, and what is told: function by function, on rows made by hand. */
let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());
beforeEach(async () => {
  await db.query('TRUNCATE cronce.run, cronce.job, cronce.schedule, cronce.pause, cronce.lock');
});

const minute = 60_000;
const at = (hours: number, minutes = 0) =>
  new Date(Date.UTC(2026, 10, 29, hours, minutes)).toISOString().replace('.000Z', 'Z');

describe('abandoned', () => {
  const ago = (minutes: number) => ({ finished_at: after(-minutes * minute) });
  const owed = (columns: Columns = {}) => ({ status: 'lost', final: false, ...ago(30), ...columns });
  const turnedAway = (columns: Columns = {}) => ({ status: 'skipped', final: false, ...ago(30), ...columns });
  const held = (minutes: number, columns: Columns = {}) => ({
    ...{ status: 'skipped', received_at: after(-minutes * minute), ...ago(minutes) },
    ...columns,
  });

  /** With a patience of 10 min, and a retention of an hour. The last column: which of the rows are owed. */
  it.each<[string, Columns[], number[]]>([
    ['lost', [owed()], [0]],
    ['failed', [owed({ status: 'failed' })], [0]],
    ['timed out', [owed({ status: 'timed_out' })], [0]],
    ['given up for want of time', [turnedAway()], [0]],
    ['given up this moment', [turnedAway(ago(0))], [0]],
    ['cancelled', [owed({ status: 'cancelled' })], []],
    ['succeeded', [owed({ status: 'succeeded' })], []],
    ['final', [owed({ final: true })], []],
    ['a skip like any other', [turnedAway({ final: null })], []],
    ['not waited for long enough: Lambda may deliver it again', [owed(ago(9))], []],
    ['past the retention', [owed(ago(61))], []],
    ['tried again since, and well', [owed(), { status: 'succeeded', final: true }], []],
    ['tried again since, and not well', [owed(), owed({ attempt: 2 })], [1]],
    ['running again', [owed(), {}], []],
    ['tried before', [owed({ final: true }), owed()], [1]],
    ['a duplicate of it was turned away long ago', [owed(), held(20)], [0]],
    ['a duplicate of it was turned away just now, and retries may follow', [owed(), held(9)], []],
    ['a duplicate of it was paused', [owed(), held(20, { skip_reason: 'paused' })], []],
    ['given up since', [owed(), turnedAway(ago(20))], [1]],
    ['missed since: that is no try', [owed(), { status: 'missed', ...ago(20) }], [0]],
    ['another slot was tried', [owed(), { status: 'succeeded', final: true, slot: at(13) }], [0]],
    ['another job was tried', [owed(), { status: 'succeeded', final: true, job: 'x' }], [0]],
    ['another deployment’s was tried', [owed(), { status: 'succeeded', final: true, deployment: 'x' }], [0]],
    ['another deployment’s', [owed({ deployment: 'x' })], []],
  ])('%s', async (_what, rows, expected) => {
    const s = stage(db);
    const ids: string[] = [];
    for (const row of rows) ids.push(await s.run(row));
    const answer = await s.ask<Row[]>('abandoned($1, 100, NULL, $2)', 10 * minute, fromNow(-60 * minute));
    expect(answer.map(({ id }) => ids.indexOf(String(id)))).toEqual(expected);
  });

  it('only of the jobs that there are, by their slots’ order, no more than wanted, at the time that it is told', async () => {
    const [s, gone] = [stage(db), stage(db)];
    await gone.run(owed());
    for (const hour of [3, 1, 2]) await s.run(owed({ slot: at(hour), scheduled_for: at(hour) }));
    const ask = async (time: string | null, most = 100, jobs: string[] | null = [s.job]) => {
      const since = fromNow(-60 * minute);
      const rows = await s.ask<Row[]>('abandoned($1, $2, $3, $4, $5, $6)', 10 * minute, most, time, since, 'default', jobs); // prettier-ignore
      return rows.map(({ slot }) => slot);
    };
    expect(await ask(null)).toEqual([at(1), at(2), at(3)]);
    expect(await ask(null, 2)).toEqual([at(1), at(2)]);
    expect(await ask(fromNow(-25 * minute))).toEqual([]);
    expect(await ask(null, 100, null)).toHaveLength(4);
  });
});

describe('account', () => {
  const due = (...hours: number[]) => hours.map((hour) => ({ id: randomUUID(), slot: at(hour), scheduledFor: at(hour) })); // prettier-ignore
  const schedule = { expression: 'cron(0 * * * ? *)', timeZone: 'UTC' };

  it.each<[string, (s: Stage) => Columns[], string[]]>([
    ['without a pause', () => [], ['missed', 'missed', 'missed']],
    ['paused in between', () => [{ paused_at: at(1), resumed_at: at(2) }], ['missed', 'paused', 'missed']],
    [
      'paused until now',
      () => [{ paused_at: at(2) }],
      ['missed', 'missed', 'paused'].slice(0, 2).concat('paused'),
    ],
    ['paused twice', () => [{ paused_at: at(0), resumed_at: at(1) }, { paused_at: at(2) }], ['paused', 'missed', 'paused']], // prettier-ignore
    ['paused before, and resumed', () => [{ paused_at: '2026-11-01T00:00:00Z', resumed_at: '2026-11-02T00:00:00Z' }], ['missed', 'missed', 'missed']], // prettier-ignore
    ['another job paused', () => [{ job: 'x', paused_at: at(0) }], ['missed', 'missed', 'missed']],
    ['paused elsewhere', () => [{ deployment: 'x', paused_at: at(0) }], ['missed', 'missed', 'missed']],
  ])('%s', async (_what, pauses, outcomes) => {
    const s = stage(db);
    for (const pause of pauses(s))
      await s.insert('pause', {
        ...{ deployment: 'default', job: s.job, paused_by: 'ann' },
        ...(pause['resumed_at'] === undefined ? {} : { resumed_by: 'bob' }),
        ...pause,
      });
    const given = { job: s.job, ...schedule, lockName: s.job, until: at(2), slots: due(0, 1, 2) };
    const made = await s.ask<Row[]>('account($1)', given);
    expect(made.map(({ skipReason, status }) => skipReason ?? status)).toEqual(outcomes);
    expect(made).toMatchObject([{ slot: at(0), trigger: 'sweep', deployment: 'default' }, {}, {}]);
    expect(await db.query('SELECT DISTINCT published_at FROM cronce.run')).toEqual([{ published_at: null }]);
  });

  it('goes on from there, never back, and with the one schedule only', async () => {
    const s = stage(db);
    const known = { deployment: 'default', job: s.job, expression: schedule.expression, time_zone: 'UTC', known_since: at(0), accounted_until: at(4), deployed_at: at(4) }; // prettier-ignore
    const others = [{ expression: 'rate(1 hour)' }, { time_zone: 'Europe/Berlin' }, { job: 'x' }, { deployment: 'x' }]; // prettier-ignore
    for (const other of [{}, ...others]) await s.insert('schedule', { ...known, ...other });
    const until = async (hour: number) => {
      await s.ask('account($1)', { job: s.job, ...schedule, lockName: s.job, until: at(hour), slots: [] });
      const rows = await db.query('SELECT accounted_until AS u FROM cronce.schedule ORDER BY u DESC');
      return rows.map(({ u }) => (u as Date).getUTCHours());
    };
    expect(await until(3)).toEqual([4, 4, 4, 4, 4]);
    expect(await until(6)).toEqual([6, 4, 4, 4, 4]);
  });
});

describe('pause_job and resume_job', () => {
  const pauses = async () =>
    db.query(
      `SELECT deployment || '/' || job AS of, paused_by, reason, resumed_by, resumed_at FROM cronce.pause ORDER BY paused_at, 1`,
    );

  it('who paused first, and why, counts; a resumed pause stays as it was; nobody else’s is touched', async () => {
    const s = stage(db);
    await s.ask(`pause_job($1, 'ann', 'first', $2)`, s.job, at(1));
    await s.ask(`resume_job($1, 'bob', $2)`, s.job, at(2));
    await s.ask(`pause_job($1, 'ann', 'second', $2)`, s.job, at(3));
    await s.ask(`pause_job($1, 'cid', 'third', $2)`, s.job, at(4));
    await s.ask(`pause_job('x', 'ann', NULL, $1)`, at(5));
    await s.ask(`pause_job($1, 'ann', NULL, $2, 'y')`, s.job, at(6));
    const paused = async () =>
      db.query('SELECT deployment || $$/$$ || name AS of, paused_by, pause_reason FROM cronce.job WHERE paused_at IS NOT NULL ORDER BY 1'); // prettier-ignore
    const mine = `default/${s.job}`;
    const others = [
      { of: 'default/x', paused_by: 'ann', pause_reason: null },
      { of: `y/${s.job}`, paused_by: 'ann', pause_reason: null },
    ];
    const second = { of: mine, paused_by: 'ann', pause_reason: 'second' };
    expect(await paused()).toEqual([second, ...others]);
    await s.ask(`resume_job($1, 'dee', $2)`, s.job, at(7));
    await s.ask(`resume_job($1, 'eve', $2)`, s.job, at(8));
    expect(await paused()).toEqual(others);
    const ended = (by: string, hour: number) => ({ resumed_by: by, resumed_at: new Date(at(hour)) });
    const open = { resumed_by: null, resumed_at: null };
    expect(await pauses()).toEqual([
      { of: mine, paused_by: 'ann', reason: 'first', ...ended('bob', 2) },
      { of: mine, paused_by: 'ann', reason: 'second', ...ended('dee', 7) },
      { of: 'default/x', paused_by: 'ann', reason: null, ...open },
      { of: `y/${s.job}`, paused_by: 'ann', reason: null, ...open },
    ]);
  });

  it('answer the job’s own row, and end no pause before it began', async () => {
    const s = stage(db);
    await s.ask(`pause_job($1, 'cid', 'why', $2, 'y')`, s.job, at(1));
    expect(await s.ask(`pause_job($1, 'ann', NULL, $2)`, s.job, at(5))).toContain('ann');
    expect(await s.ask(`pause_job($1, 'bob', NULL, $2)`, s.job, at(6))).toContain('ann');
    const resumed = await s.ask<string>(`resume_job($1, 'bob', $2)`, s.job, at(4));
    expect(resumed).toContain(s.job);
    expect(resumed).not.toContain('ann');
    expect((await pauses()).find(({ paused_by: by }) => by === 'ann')).toMatchObject({
      resumed_at: new Date(at(5)),
    });
  });
});

describe('prune', () => {
  const ended = (day: number, columns: Columns = {}) => ({
    finished_at: `2026-11-${String(day).padStart(2, '0')}T00:00:00Z`,
    final: true,
    ...columns,
  });
  const success = (day: number, columns: Columns = {}) =>
    ended(day, {
      status: 'succeeded',
      slot: `2026-11-${String(day).padStart(2, '0')}T00:00:00Z`,
      ...columns,
    });

  /** Before the 20th of the month. The last column: which of the rows are kept. */
  it.each<[string, Columns[], number[]]>([
    ['the last success and the last failure', [success(1), success(2), ended(3, { status: 'failed' }), ended(4, { status: 'lost' })], [1, 3]], // prettier-ignore
    ['of each job', [success(1), success(2, { job: 'x' })], [0, 1]],
    ['the young', [success(1), success(21), success(22)], [1, 2]],
    ['no skips, and none that were missed or cancelled', [ended(1, { status: 'skipped' }), ended(2, { status: 'missed' }), ended(3, { status: 'cancelled' })], []], // prettier-ignore
    ['one that runs, however old', [{ claimed_at: '2026-11-01T00:00:00Z' }], [0]],
    ['all of another deployment', [success(1, { deployment: 'x' }), success(2, { deployment: 'x' }), success(3)], [0, 1, 2]], // prettier-ignore
    ['a success of which a newer one has come since', [success(1), success(21)], [1]],
    [
      'a failure, whatever succeeded since',
      [ended(1, { status: 'failed' }), success(2), success(21)],
      [0, 2],
    ],
    ['a timeout is a failure', [ended(1, { status: 'failed' }), ended(2, { status: 'timed_out' })], [1]],
  ])('keeps %s', async (_what, rows, kept) => {
    const s = stage(db);
    const ids: string[] = [];
    for (const row of rows) ids.push(await s.run(row));
    expect(await s.ask('prune($1, 100)', '2026-11-20T00:00:00Z')).toEqual({ pruned: rows.length - kept.length, until: null }); // prettier-ignore
    const left = await db.query('SELECT id FROM cronce.run');
    expect(left.map(({ id }) => ids.indexOf(String(id))).sort()).toEqual(kept);
  });

  it('the oldest first, no more than wanted', async () => {
    const s = stage(db);
    for (const day of [3, 1, 2, 4]) await s.run(success(day));
    const { until, pruned } = await s.ask('prune($1, 2)', '2026-11-20T00:00:00Z');
    expect(pruned).toBe(2);
    const left = await db.query('SELECT slot FROM cronce.run ORDER BY slot');
    expect(left.map(({ slot }) => String(slot).slice(8, 10))).toEqual(['03', '04']);
    expect(new Date(String(until))).toEqual(new Date('2026-11-02T00:00:00Z'));
    // The next batch begins there, and does not look at what is older.
    await s.run(ended(1, { status: 'cancelled' }));
    const next = await s.ask('prune($1, 2, $2, $3)', '2026-11-20T00:00:00Z', 'default', until);
    expect(next).toEqual({ pruned: 1, until: null });
  });

  it('leaves what someone has locked for the next time, and waits for nobody', async () => {
    const s = stage(db);
    const [locked] = [await s.run(success(1)), await s.run(success(2)), await s.run(success(3))];
    await holding(db, {}, async ({ session }) => {
      await session.query(`SELECT FROM cronce.run WHERE id = '${locked}' FOR UPDATE`);
      expect(await s.ask('prune($1, 100)', '2026-11-20T00:00:00Z')).toEqual({ pruned: 1, until: null });
    });
    expect(await s.ask('prune($1, 100)', '2026-11-20T00:00:00Z')).toEqual({ pruned: 1, until: null });
  });

  it('takes the lock of one slot with its run, and no other: their fences are for ever', async () => {
    const s = stage(db);
    const [gone, named, kept] = [
      await s.run(ended(1, { status: 'cancelled' })),
      await s.run(ended(2, { status: 'cancelled' })),
      await s.run(ended(21, { status: 'cancelled' })),
    ];
    await s.lock({ key: 1, run_id: gone, of_slot: true });
    await s.lock({ key: 2, run_id: named, of_slot: false });
    await s.lock({ key: 3, run_id: kept, of_slot: true });
    expect(await s.ask('prune($1, 100)', '2026-11-20T00:00:00Z')).toMatchObject({ pruned: 2 });
    const left = await db.query('SELECT key FROM cronce.lock ORDER BY key');
    expect(left).toEqual([{ key: '2' }, { key: '3' }]);
  });
});

describe('the outbox', () => {
  const past = { status: 'failed', final: false, publish_after: after(-1_000) };
  async function taken(s: Stage, own: string[], most = 10, deployment = 'default') {
    const rows = await s.ask<{ run: Row }[]>('take_unpublished($1, $2, $3)', own, most, deployment);
    return rows.map(({ run }) => run['id']);
  }

  it.each<[string, Columns, boolean, boolean]>([
    ['what is due', past, true, true],
    ['what has just ended is left to its own', { ...past, publish_after: after(9_000) }, false, true],
    ['what is told', { ...past, published_at: after(0) }, false, false],
    ['what runs', { publish_after: after(-1_000) }, false, false],
    ['another deployment’s', { ...past, deployment: 'x' }, false, false],
  ])('%s', async (_what, row, isDue, isOwn) => {
    const s = stage(db);
    const id = await s.run(row);
    expect(await taken(s, [])).toEqual(isDue ? [id] : []);
    expect(await taken(s, [id])).toEqual(isOwn ? [id] : []);
    if (row['deployment'] !== undefined) expect(await taken(s, [], 10, 'x')).toEqual([id]);
  });

  it('one’s own first, then the oldest, no more than wanted', async () => {
    const s = stage(db);
    const ids: string[] = [];
    for (const seconds of [30, 50, 40, -20]) ids.push(await s.run({ ...past, publish_after: after(-seconds * 1_000) })); // prettier-ignore
    expect(await taken(s, [ids[3] ?? ''], 3)).toEqual([ids[3], ids[1], ids[2]]);
  });

  it('passes by what another relay has, and doesn’t wait for it', async () => {
    const s = stage(db);
    const ids = [await s.run(past), await s.run(past), await s.run(past)];
    await holding(db, {}, async ({ session }) => {
      await session.query(`SELECT cronce.take_unpublished('{${ids[0]}}', 1)`);
      await holding(db, {}, async (other) => {
        await other.session.query(`SET LOCAL statement_timeout = '2s'`);
        const { rows } = await other.session.query<{ due: { run: Row }[] }>(
          `SELECT cronce.take_unpublished('{}', 10) AS due`,
        );
        expect(rows[0]?.due.map(({ run }) => run['id'])).toEqual([ids[1], ids[2]]);
      });
    });
  });

  it('mark_published: what is done is done; the rest waits twice as long each time, an hour at most', async () => {
    const s = stage(db);
    const [done, rest, other] = [await s.run(past), await s.run(past), await s.run(past)];
    const mark = async () => {
      await s.ask('mark_published($1)', JSON.stringify([
          { id: done, sentTo: ['log', 'bus'], done: true },
          { id: rest, sentTo: ['log'], done: false },
        ])); // prettier-ignore
      return Math.round(
        ((await s.row(rest))['publish_after'] as Date).getTime() / 1_000 - Date.now() / 1_000,
      );
    };
    const waits: number[] = [];
    for (let n = 0; n < 12; n++) waits.push(await mark());
    for (const [n, wanted] of [10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 3_600, 3_600, 3_600].entries())
      expect(Math.abs((waits[n] ?? 0) - wanted), `wait ${n}`).toBeLessThan(3);
    expect(await s.row(done)).toMatchObject({
      published_to: ['log', 'bus'],
      published_at: expect.any(Date) as Date,
    });
    expect(await s.row(rest)).toMatchObject({
      published_to: ['log'],
      published_at: null,
      publish_attempts: 12,
    });
    expect(await s.row(other)).toMatchObject({ published_to: [], published_at: null, publish_attempts: 0 });
  });

  it('mark_told: what is over and not told yet, once', async () => {
    const s = stage(db);
    const before = new Date(at(1));
    const [over, runs, told, other] = [await s.run(past), await s.run(), await s.run({ ...past, published_at: before, published_to: ['bus'] }), await s.run(past)]; // prettier-ignore
    await s.ask('mark_told($1)', [over, runs, told]);
    expect(await s.row(over)).toMatchObject({
      published_to: ['log'],
      published_at: expect.any(Date) as Date,
    });
    expect(await s.row(runs)).toMatchObject({ published_to: [], published_at: null });
    expect(await s.row(told)).toMatchObject({ published_to: ['bus'], published_at: before });
    expect(await s.row(other)).toMatchObject({ published_at: null });
  });
});

describe('schedules', () => {
  const given = (...of: Columns[]) => JSON.stringify(of.map((one) => ({ job: 'a', expression: 'rate(1 hour)', timeZone: 'UTC', ...one }))); // prettier-ignore

  it('are known from when they are seen, stay so, and are gone once they are not', async () => {
    const s = stage(db);
    const know = async (of: string, hour: number, deployment = 'default') => {
      const rows = await s.ask<Row[]>('know_schedules($1, $2, $3)', of, at(hour), deployment);
      const hours = (time: unknown) => new Date(String(time)).getUTCHours();
      return rows
        .map((one) =>
          [
            one['job'],
            one['expression'],
            hours(one['knownSince']),
            hours(one['accountedUntil']),
            hours(one['deployedAt']),
            one['gone'],
          ].join(' '),
        ) // prettier-ignore
        .sort();
    };
    expect(await know(given({}), 1)).toEqual(['a rate(1 hour) 1 1 1 false']);
    expect(await know(given({}, { job: 'b' }), 2)).toEqual([
      'a rate(1 hour) 1 1 2 false',
      'b rate(1 hour) 2 2 2 false',
    ]);
    expect(await know(given({}), 1), 'never back').toContain('a rate(1 hour) 1 1 2 false');
    expect(await know(given({ expression: 'rate(2 hours)' }), 4)).toEqual([
      'a rate(1 hour) 1 1 2 true',
      'a rate(2 hours) 4 4 4 false',
      'b rate(1 hour) 2 2 2 true',
    ]);
    expect(await know(given({ timeZone: 'Europe/Berlin' }), 5, 'y')).toEqual(['a rate(1 hour) 5 5 5 false']);
    expect(await db.query('SELECT deployment, name FROM cronce.job ORDER BY 1, 2')).toEqual([
      { deployment: 'default', name: 'a' },
      { deployment: 'default', name: 'b' },
      { deployment: 'y', name: 'a' },
    ]);
    expect(await s.ask(`forget_schedule('a', 'rate(1 hour)', 'UTC')`)).toBe(true);
    expect(await s.ask(`forget_schedule('a', 'rate(1 hour)', 'UTC')`)).toBe(false);
    expect(await know(given(), 6)).toHaveLength(2);
    expect(await know(given(), 6, 'y')).toHaveLength(1);
  });

  it.each<[string, Columns, boolean]>([
    ['whatever became of it', { status: 'skipped' }, true],
    ['at the first moment', { scheduled_for: at(11) }, true],
    ['at the last', { scheduled_for: at(13) }, true],
    ['before', { scheduled_for: '2026-11-29T10:59:59Z' }, false],
    ['after', { scheduled_for: '2026-11-29T13:00:01Z' }, false],
    ['by hand, at a time of its own', { slot: 'manual:k' }, false],
    ['by hand, of a slot', { trigger: 'manual' }, true],
    ['an event that was none of the schedule’s', { status: 'skipped', skip_reason: 'off_schedule' }, false],
    ['of another job', { job: 'x' }, false],
    ['of another deployment', { deployment: 'x' }, false],
  ])('delivered: %s', async (_what, row, counts) => {
    const s = stage(db);
    await s.run(row);
    const times = await s.ask<Date[]>('delivered($1, $2, $3)', s.job, at(11), at(13));
    expect(times).toEqual(
      counts ? [new Date(typeof row['scheduled_for'] === 'string' ? row['scheduled_for'] : noon)] : [],
    );
  });
});
