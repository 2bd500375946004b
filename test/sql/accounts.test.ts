import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { after, fromNow, holding, noon, stage, type Columns, type Row, type Stage } from '../support/rows.ts';

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

describe('what a job owes', () => {
  const ago = (minutes: number) => ({ finished_at: after(-minutes * minute) });
  const owed = (columns: Columns = {}) => ({ status: 'lost', final: false, ...ago(30), ...columns });
  const turnedAway = (columns: Columns = {}) => ({ status: 'skipped', final: false, ...ago(30), ...columns });
  const missed = (columns: Columns = {}) => ({ status: 'missed', final: false, trigger: 'sweep', ...ago(30), ...columns }); // prettier-ignore
  const held = (minutes: number, columns: Columns = {}) => ({
    ...{ status: 'skipped', received_at: after(-minutes * minute), ...ago(minutes) },
    ...columns,
  });
  const asked = (minutes: number) => ({ asked_at: after(-minutes * minute) });
  const came = (minutes: number, columns: Columns = {}) => held(minutes, { trigger: 'sweep', ...columns });

  async function next(s: Stage, of: { since?: string | null; at?: string | null; manual?: boolean } = {}) {
    const { since = fromNow(-60 * minute), at: time = null, manual = false } = of;
    return s.ask<Row | null>(`next_owed('default', $1, $2, $3, $4, $5)`, s.job, 10 * minute, time, since, manual); // prettier-ignore
  }

  /** With a patience of 10 min, and a retention of an hour. The last column: which of the rows is the next, if any. */
  it.each<[string, Columns[], number | null]>([
    ['lost', [owed()], 0],
    ['failed', [owed({ status: 'failed' })], 0],
    ['timed out', [owed({ status: 'timed_out' })], 0],
    ['given up for want of time', [turnedAway()], 0],
    ['given up this moment', [turnedAway(ago(0))], 0],
    ['missed and wanted', [missed()], 0],
    ['missed this moment, and wanted', [missed(ago(0))], 0],
    ['missed, and that is that', [missed({ final: null })], null],
    ['cancelled', [owed({ status: 'cancelled' })], null],
    ['succeeded', [owed({ status: 'succeeded' })], null],
    ['final', [owed({ final: true })], null],
    ['a skip like any other', [turnedAway({ final: null })], null],
    ['not waited for long enough: Lambda may deliver it again', [owed(ago(9))], null],
    ['nor one that timed out', [owed({ status: 'timed_out', ...ago(9) })], null],
    ['nor one that failed', [owed({ status: 'failed', ...ago(9) })], null],
    ['past the retention', [owed(ago(61))], null],
    ['tried again since, and well', [owed(), { status: 'succeeded', final: true }], null],
    ['tried before, and well, though recorded later', [{ status: 'succeeded', final: true }, missed()], null],
    ['tried again since, and not well', [owed(), owed({ attempt: 2 })], 1],
    ['tried again since, for the last time', [owed(), owed({ attempt: 3, final: true })], null],
    ['running again', [owed(), {}], null],
    ['tried before', [owed({ final: true, slot: at(1) }), owed()], 1],
    ['a duplicate of it was turned away long ago', [owed(), held(20)], 0],
    ['a duplicate of it was turned away just now, and retries may follow', [owed(), held(9)], null],
    [
      'a duplicate of it was paused: it is owed all the same',
      [owed(), held(20, { skip_reason: 'paused' })],
      0,
    ],
    ['a duplicate came too late', [owed(), held(20, { skip_reason: 'too_late' })], null],
    ['a duplicate came too late before that', [held(40, { skip_reason: 'too_late' }), owed()], 1],
    ['a duplicate found it on hold', [owed(), held(20, { skip_reason: 'on_hold' })], null],
    ['given up since', [owed(), turnedAway(ago(20))], 1],
    ['turned away twice: it owes once', [turnedAway(), turnedAway(ago(20))], 1],
    ['missed since: that is no try', [owed(), missed({ final: null, ...ago(20) })], 0],
    ['another slot was tried', [owed(), { status: 'succeeded', final: true, slot: at(13) }], 0],
    ['another job was tried', [owed(), { status: 'succeeded', final: true, job: 'x' }], 0],
    ['another deployment’s was tried', [owed(), { status: 'succeeded', final: true, deployment: 'x' }], 0],
    ['another deployment’s', [owed({ deployment: 'x' })], null],
    ['another job’s', [owed({ job: 'x' })], null],
    ['asked for and not come yet', [missed(asked(9))], null],
    ['asked for and not come for so long', [missed(asked(11))], 0],
    ['asked for and turned away', [missed(asked(9)), came(8)], 0],
    ['asked for after it was turned away', [missed(asked(7)), came(8)], null],
    ['asked for, and a duplicate of its own came', [missed(asked(9)), held(8)], null],
    ['held back, since later ones may be missed', [missed({ asked_at: 'infinity' })], null],
    ['paid', [missed({ paid: true })], null],
    ['behind an older one', [missed({ slot: at(14), scheduled_for: at(14) }), missed()], 1],
    [
      'behind an older one that is asked for',
      [missed({ slot: at(14), scheduled_for: at(14) }), missed(asked(1))],
      null,
    ],
    [
      'beside one that runs',
      [missed({ slot: at(14), scheduled_for: at(14) }), missed(), { trigger: 'sweep' }],
      null,
    ],
    [
      'behind one that failed, with a retry to come',
      [missed({ slot: at(14), scheduled_for: at(14) }), owed({ trigger: 'sweep', ...ago(9) })],
      null,
    ],
    [
      'beside a slot of its time that failed, with a retry to come',
      [missed({ slot: at(14), scheduled_for: at(14) }), owed(ago(9))],
      0,
    ],
    [
      'before one that is held back',
      [missed({ slot: at(11), scheduled_for: at(11), asked_at: 'infinity' }), missed()],
      1,
    ],
  ])('%s', async (_what, rows, expected) => {
    const s = stage(db);
    await s.insert('job', { deployment: 'default', name: s.job });
    const ids: string[] = [];
    for (const row of rows) ids.push(await s.run(row));
    const answer = await next(s);
    expect(answer && ids.indexOf(String(answer['id']))).toEqual(expected);
    if (answer === null) return;
    const since = (Date.now() - ((await s.row(String(answer['id'])))['asked_at'] as Date).getTime()) / minute;
    expect(since, 'it counts as asked for').toBeLessThan(5);
    expect(await next(s), 'one at a time').toBeNull();
    await s.ask('not_asked($1)', answer['id']);
    expect(await next(s), 'unless it could not be handed over').toMatchObject({ id: answer['id'] });
  });

  it('is asked for oldest first, whatever the order of the records; at the time that it is told', async () => {
    const s = stage(db);
    await s.insert('job', { deployment: 'default', name: s.job });
    for (const hour of [3, 1, 2]) await s.run(owed({ slot: at(hour), scheduled_for: at(hour) }));
    expect(await next(s, { at: fromNow(-25 * minute) }), 'still patient then').toBeNull();
    const order: unknown[] = [];
    for (let one = await next(s); one !== null; one = await next(s)) {
      order.push(one['slot']);
      await s.run({ status: 'succeeded', final: true, slot: one['slot'], scheduled_for: one['slot'] });
    }
    expect(order).toEqual([at(1), at(2), at(3)]);
    const paid = await db.query('SELECT DISTINCT paid FROM cronce.run WHERE final = false');
    expect(paid, 'what is over is looked at no more').toEqual([{ paid: true }]);
  });

  it('is not asked for while the job is paused; of a disabled job only what was run by hand', async () => {
    const s = stage(db);
    await s.run(missed());
    await s.ask(`pause_job($1, 'ann', NULL, NULL)`, s.job);
    expect(await next(s)).toBeNull();
    await s.ask(`resume_job($1, 'bob', NULL)`, s.job);
    expect(await next(s, { manual: true })).toBeNull();
    const byHand = await s.run(owed({ slot: 'manual:k' }));
    expect(await next(s, { manual: true })).toMatchObject({ id: byHand });
  });

  it('is chosen by one at a time: who comes second waits for nobody, and chooses nothing', async () => {
    const s = stage(db);
    await s.insert('job', { deployment: 'default', name: s.job });
    await s.run(missed());
    await s.run(missed({ slot: at(14), scheduled_for: at(14) }));
    await holding(db, {}, async ({ session }) => {
      await session.query(`SELECT cronce.next_owed('default', '${s.job}', 600000)`);
      expect(await next(s)).toBeNull();
    });
    expect(await next(s)).toMatchObject({ slot: noon });
  });

  it('a job’s hint says whether more is owed than what was asked for', async () => {
    const s = stage(db);
    await s.insert('job', { deployment: 'default', name: s.job, owes: true });
    await s.insert('job', { deployment: 'x', name: s.job, owes: true });
    const owes = async () =>
      (await db.query('SELECT owes FROM cronce.job WHERE name = $1 ORDER BY deployment', [s.job])).map((row) => row['owes']); // prettier-ignore
    const first = await s.run(missed());
    await s.run(missed({ slot: at(14), scheduled_for: at(14) }));
    await next(s);
    expect(await owes()).toEqual([true, true]);
    await db.query(`UPDATE cronce.run SET paid = true WHERE id = $1`, [first]);
    await next(s);
    expect(await owes()).toEqual([false, true]);
  });
});

describe('a delivery that is turned away', () => {
  const sweeps = (columns: Columns = {}) => ({ trigger: 'sweep', slot: at(9), guard_key: '7', ...columns });

  /** By this run, in whose hands the lock is. The last column: it is owed. */
  it.each<[string, Columns, Columns, boolean]>([
    ['for one that catches up', sweeps(), {}, true],
    ['by Scheduler too', sweeps(), { trigger: 'scheduler' }, true],
    ['without a time of its own too', sweeps(), { trigger: 'unknown', slotGuessed: true }, true],
    ['for one of its time', sweeps({ trigger: 'rule' }), {}, false],
    ['for one that a person started', sweeps({ trigger: 'manual' }), {}, false],
    ['for another job’s that catches up', sweeps({ job: 'x' }), {}, true],
    ['for another deployment’s that catches up', sweeps({ deployment: 'x' }), {}, true],
    ['for another job’s slot of the same time', sweeps({ job: 'x', slot: noon }), {}, true],
    ['for the run of its own slot', { trigger: 'sweep' }, {}, false],
    ['though a person asked for it', sweeps(), { trigger: 'manual' }, false],
    ['though it is owed already', sweeps(), { trigger: 'sweep' }, false],
  ])('%s', async (_what, holder, run, isOwed) => {
    const s = stage(db);
    await holding(db, { keys: [s.key] }, async ({ pid }) => {
      const inWay = await s.run({ backend_pid: pid, ...holder });
      const { run: made } = await s.ask<{ run: Row }>('claim($1)', s.claim({ run }));
      expect(made).toMatchObject({ skipReason: 'held', blockedBy: inWay, final: isOwed ? false : null });
    });
    const [row] = await db.query(`SELECT owes FROM cronce.job WHERE name = $1`, [s.job]);
    expect(row).toEqual({ owes: isOwed });
  });

  it('for one that catches up in one of several places, though another is the elder', async () => {
    const s = stage(db);
    await holding(db, { keys: ['1', '2'] }, async ({ pid }) => {
      await s.run({ backend_pid: pid, trigger: 'rule', slot: at(8), lock_key: '1', guard_key: '8', claimed_at: after(-60_000) }); // prettier-ignore
      const inWay = await s.run({ backend_pid: pid, ...sweeps(), lock_key: '2' });
      const { run: made } = await s.ask<{ run: Row }>('claim($1)', s.claim({ lock: { keys: ['1', '2'] } }));
      expect(made).toMatchObject({ skipReason: 'held', blockedBy: inWay, final: false });
    });
  });

  it('while its job is paused is not owed, but paused', async () => {
    const s = stage(db);
    await s.ask(`pause_job($1, 'ann', NULL, NULL)`, s.job);
    await holding(db, { keys: [s.key] }, async ({ pid }) => {
      await s.run({ backend_pid: pid, ...sweeps() });
      const { run: made } = await s.ask<{ run: Row }>('claim($1)', s.claim());
      expect(made).toMatchObject({ skipReason: 'paused', final: null });
    });
  });

  it('a claim says whether its job owes', async () => {
    const s = stage(db);
    const owes = async (slot: string) =>
      (await s.ask('claim($1)', s.claim({ run: { slot }, lock: { keys: [String(slot.length)], guard: '5' } })))['owes']; // prettier-ignore
    expect(await owes('a')).toBe(false);
    await db.query(`UPDATE cronce.job SET owes = true WHERE name = $1`, [s.job]);
    expect(await owes('ab')).toBe(true);
  });
});

describe('account', () => {
  const due = (...hours: number[]) => hours.map((hour) => ({ id: randomUUID(), slot: at(hour), scheduledFor: at(hour) })); // prettier-ignore
  const schedule = { expression: 'cron(0 * * * ? *)', timeZone: 'UTC' };
  const page = (s: Stage, columns: Columns) => ({ job: s.job, lockName: s.job, schedules: [], ...columns });

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
    const made = await s.ask<Row[]>('account($1)', page(s, { slots: due(0, 1, 2) }));
    expect(made.map(({ skipReason, status }) => skipReason ?? status)).toEqual(outcomes);
    expect(made).toMatchObject([
      { slot: at(0), trigger: 'sweep', deployment: 'default', final: null },
      {},
      {},
    ]);
    expect(await db.query('SELECT DISTINCT published_at FROM cronce.run')).toEqual([{ published_at: null }]);
  });

  it('records nothing of a slot that has come since the sweep looked', async () => {
    const s = stage(db);
    await s.run({ slot: at(1), scheduled_for: at(1) });
    await s.run({ slot: at(2), scheduled_for: at(2), status: 'skipped', skip_reason: 'off_schedule' });
    const made = await s.ask<Row[]>('account($1)', page(s, { slots: due(0, 1, 2) }));
    expect(made.map(({ slot }) => slot)).toEqual([at(0), at(2)]);
  });

  it('goes on from there, never back, and with its schedules only', async () => {
    const s = stage(db);
    const known = { deployment: 'default', job: s.job, expression: schedule.expression, time_zone: 'UTC', known_since: at(0), accounted_until: at(4), deployed_at: at(4) }; // prettier-ignore
    const others = [{ expression: 'rate(1 hour)' }, { time_zone: 'Europe/Berlin' }, { job: 'x' }, { deployment: 'x' }, { ends_at: at(20) }, { starts_at: at(20) }]; // prettier-ignore
    for (const other of [{}, ...others]) await s.insert('schedule', { ...known, starts_at: '-infinity', ends_at: 'infinity', ...other }); // prettier-ignore
    const until = async (hour: number, window: Columns = {}) => {
      const schedules = [{ ...schedule, until: at(hour), ...window }];
      await s.ask('account($1)', page(s, { schedules, slots: [] }));
      const rows = await db.query('SELECT accounted_until AS u FROM cronce.schedule ORDER BY u DESC');
      return rows.map(({ u }) => (u as Date).getUTCHours());
    };
    expect(await until(3)).toEqual([4, 4, 4, 4, 4, 4, 4]);
    expect(await until(6)).toEqual([6, 4, 4, 4, 4, 4, 4]);
    expect(await until(7, { end: at(20) })).toEqual([7, 6, 4, 4, 4, 4, 4]);
  });

  /** Slots of 1 to 5 o'clock, with these rows besides. The last column: which hours are owed. */
  const one = { catchUp: 'one' };
  const all = (catchUpLimit = 10) => ({ catchUp: 'all', catchUpLimit });
  const earlier = (hour: number, columns: Columns = {}) => ({ status: 'missed', trigger: 'sweep', slot: at(hour), scheduled_for: at(hour), ...columns }); // prettier-ignore
  const regular = (hour: number, columns: Columns = {}) => ({ status: 'succeeded', final: true, slot: at(hour), scheduled_for: at(hour), ...columns }); // prettier-ignore
  it.each<[string, Columns, Columns[], number[]]>([
    ['skip', { catchUp: 'skip' }, [], []],
    ['no policy', {}, [], []],
    ['one: the latest', one, [], [5]],
    ['all: each', all(), [], [1, 2, 3, 4, 5]],
    ['all: the oldest, up to the limit', all(2), [], [1, 2]],
    ['none that was due before', { ...all(2), earliest: at(3) }, [], [3, 4]],
    ['none of them', { ...one, earliest: at(6) }, [], []],
    ['what this outage was granted before counts', all(2), [earlier(0, { final: false })], [0, 1]],
    ['… and paid', all(2), [earlier(0, { final: false, paid: true })], [0, 1]],
    ['… of another job does not', all(2), [earlier(0, { final: false, job: 'x' })], [1, 2]],
    ['… of another deployment does not', all(2), [earlier(0, { final: false, deployment: 'x' })], [1, 2]],
    ['… what was not granted does not', all(2), [earlier(0)], [1, 2]],
    ['… of an outage before does not', all(2), [earlier(-2, { final: false }), regular(0)], [-2, 1, 2]],
    [
      '… but what was run by hand ends no outage',
      all(2),
      [earlier(-2, { final: false }), regular(0, { trigger: 'manual' })],
      [-2, 1],
    ],
    [
      '… nor what was caught up',
      all(2),
      [earlier(-2, { final: false }), regular(0, { trigger: 'sweep' })],
      [-2, 1],
    ],
    [
      '… nor what was none of its slots',
      all(2),
      [
        earlier(-2, { final: false }),
        { status: 'skipped', skip_reason: 'off_schedule', slot: at(0), scheduled_for: at(0) },
      ],
      [-2, 1],
    ],
    ['… nor another job’s', all(2), [earlier(-2, { final: false }), regular(0, { job: 'x' })], [-2, 1]],
    [
      'a slot that came, whatever became of it, ends an outage',
      all(2),
      [{ status: 'skipped', slot: at(3), scheduled_for: at(3) }],
      [1, 2, 4, 5],
    ],
    ['one of each outage', one, [{ status: 'skipped', slot: at(3), scheduled_for: at(3) }], [2, 5]],
    ['one: what was granted before and not asked for gives way', one, [earlier(0, { final: false })], [5]],
    ['… what was held back too', one, [earlier(0, { final: false, asked_at: 'infinity' })], [5]],
    ['… but not what was asked for', one, [earlier(0, { final: false, asked_at: at(1) })], [0]],
    ['… nor what was paid', one, [earlier(0, { final: false, paid: true })], [0]],
    ['… nor to an earlier one', one, [earlier(9, { final: false })], [9]],
    ['… nor that of another outage', one, [earlier(-2, { final: false }), regular(0)], [-2, 5]],
  ])('catch-up: %s', async (_what, policy, rows, hours) => {
    const s = stage(db);
    await s.insert('job', { deployment: 'default', name: s.job });
    for (const row of rows) await s.run(row);
    await s.ask('account($1)', page(s, { ...policy, slots: due(1, 2, 3, 4, 5) }));
    const owed = await db.query(
      `SELECT scheduled_for AS d FROM cronce.run WHERE deployment = 'default' AND job = $1 AND final = false ORDER BY d`,
      [s.job],
    );
    const hourOf = (d: unknown) => ((d as Date).getTime() - Date.parse(at(0))) / (60 * minute);
    expect(owed.map(({ d }) => hourOf(d))).toEqual(hours);
    const [row] = await db.query(`SELECT owes FROM cronce.job WHERE name = $1`, [s.job]);
    const open = await db.query(`SELECT 1 FROM cronce.run WHERE deployment = 'default' AND job = $1 AND final = false AND NOT paid`, [s.job]); // prettier-ignore
    expect(row).toEqual({ owes: policy['catchUp'] !== undefined && open.length > 0 });
  });

  it('one of several pages is the latest of them all, and not to be asked for before the last', async () => {
    const s = stage(db);
    await s.insert('job', { deployment: 'default', name: s.job });
    const owed = async () =>
      (await db.query(`SELECT slot, asked_at::text FROM cronce.run WHERE job = $1 AND final = false`, [s.job])).map(({ slot, asked_at: asked }) => [slot, asked]); // prettier-ignore
    await s.ask('account($1)', page(s, { ...one, whole: false, slots: due(1, 2) }));
    expect(await owed()).toEqual([[at(2), 'infinity']]);
    await s.ask('account($1)', page(s, { ...one, whole: false, slots: due(3) }));
    expect(await owed()).toEqual([[at(3), 'infinity']]);
    await s.ask('account($1)', page(s, { ...one, whole: true, slots: [] }));
    expect(await owed(), 'it lies in an earlier page').toEqual([[at(3), null]]);
  });

  it('grants no slot whose name is not certain', async () => {
    const s = stage(db);
    const slots = due(1, 2).map((slot, index) => ({ ...slot, certain: index === 0 }));
    const made = await s.ask<Row[]>('account($1)', page(s, { ...one, slots }));
    expect(made.map(({ final }) => final)).toEqual([false, null]);
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
    expect(await s.ask(`forget_schedule('a', 'rate(1 hour)', 'UTC', 'default', $1)`, at(1))).toBe(false);
    expect(await s.ask(`forget_schedule('a', 'rate(1 hour)', 'UTC', 'default', NULL, $1)`, at(1))).toBe(
      false,
    );
    expect(await s.ask(`forget_schedule('a', 'rate(1 hour)', 'UTC')`)).toBe(true);
    expect(await s.ask(`forget_schedule('a', 'rate(1 hour)', 'UTC')`)).toBe(false);
    expect(await know(given(), 6)).toHaveLength(2);
    expect(await know(given(), 6, 'y')).toHaveLength(1);
  });

  it('F4: of one expression with two windows are two, each known and gone for itself', async () => {
    const s = stage(db);
    const know = async (hour: number, ...windows: Columns[]) => {
      const rows = await s.ask<Row[]>('know_schedules($1, $2)', given(...windows), at(hour));
      return rows.map((one) => [one['start'], one['end'], one['gone']].map((bound) => (typeof bound === 'string' ? new Date(bound).getUTCHours() : bound))); // prettier-ignore
    };
    const [early, late] = [{ end: at(10) }, { start: at(12) }];
    expect(await know(1, early, late)).toEqual([
      [null, 10, false],
      [12, null, false],
    ]);
    expect(await know(2, late)).toEqual([
      [null, 10, true],
      [12, null, false],
    ]);
    expect(await know(3, { ...early, ...late }, {}, {})).toEqual([
      [null, 10, true],
      [null, null, false],
      [12, 10, false],
      [12, null, true],
    ]);
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
