import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { coordinate } from '../../src/coordinate.ts';
import { defineJob, defineJobs, type Job, type JobOptions } from '../../src/job.ts';
import { PermanentError } from '../../src/run.ts';
import { Session } from '../../src/postgres/session.ts';
import type { Sink } from '../../src/sinks/sink.ts';
import type { RunRecord } from '../../src/run.ts';
import { sweepJob, type Swept } from '../../src/sweep/sweep.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { after, stage } from '../support/rows.ts';
import { VirtualWorld } from '../support/virtual.ts';

const minute = 60_000;
const hour = 60 * minute;
const day = 24 * hour;

let db: TestDatabase;
let sweeps = 0;
beforeAll(async () => void (db = await freshDatabase({ examples: true })));
afterAll(async () => db.drop());
beforeEach(async () => {
  await db.query('TRUNCATE cronce.run, cronce.job, cronce.schedule, cronce.pause, cronce.lock');
});

class World extends VirtualWorld {
  constructor(now: string, ...jobs: Job[]) {
    super(db.url, now, jobs);
  }
}

function job(options: Partial<JobOptions> = {}): Job {
  return defineJob({ name: 'hourly', schedule: 'cron(0 * * * ? *)', work: async () => 1, ...options });
}

async function slots(status: string, name = 'hourly'): Promise<string[]> {
  const rows = await db.query(
    'SELECT slot FROM cronce.run WHERE job = $1 AND status = $2 ORDER BY scheduled_for',
    [name, status],
  );
  return rows.map(({ slot }) => String(slot).slice(5, 16).replace('T', ' '));
}

async function pause(name: string, at: Date): Promise<void> {
  await db.query(`SELECT cronce.pause_job($1, 'ann', 'maintenance', $2)`, [name, at]);
}
async function resume(name: string, at: Date): Promise<void> {
  await db.query(`SELECT cronce.resume_job($1, 'bob', $2)`, [name, at]);
}

describe('missed slots', () => {
  it('are recorded once nothing has come for five minutes, and told', async () => {
    const world = new World('2026-11-29T10:30:00Z', job());
    expect(await world.sweep()).toMatchObject({ missed: 0 });
    await world.deliver(world.jobs[0] as Job, '2026-11-29T11:00:00Z');
    expect(await world.pass(94 * minute).sweep()).toMatchObject({ missed: 0 });
    expect(await world.pass(2 * minute).sweep()).toMatchObject({ missed: 1 });
    expect(await world.pass(hour).sweep()).toMatchObject({ missed: 1 });
    expect(await slots('missed')).toEqual(['11-29 12:00', '11-29 13:00']);
    expect(world.logger.lines.filter(({ level }) => level === 'error').map(({ message }) => message)).toEqual(
      ['hourly missed', 'hourly missed'],
    );
    expect(world.asked).toEqual([]);
  });

  it('of a day’s outage of a job that is due each minute are all recorded, however many', async () => {
    const world = new World('2026-11-29T00:00:30Z', job({ schedule: 'cron(* * * * ? *)' }));
    await world.sweep();
    world.pass(day);
    const passes = [await world.sweep(), await world.sweep(), await world.sweep(), await world.sweep()];
    expect(passes.map(({ missed }) => missed)).toEqual([1435, 0, 0, 0]);
  });

  it('of a zone follow its clock through a change of it', async () => {
    const berlin = job({ name: 'berlin', schedule: { at: 'cron(30 2 * * ? *)', timeZone: 'Europe/Berlin' } });
    const world = new World('2027-03-27T00:00:00Z', berlin);
    await world.sweep();
    await world.pass(3 * day).sweep();
    expect(await slots('missed', 'berlin')).toEqual(['03-27 01:30', '03-29 00:30']); // the 28th has no 02:30
  });

  it('of a rate go by the phase of its deliveries, which may be off by seconds', async () => {
    const rate = job({ name: 'rate', schedule: 'rate(10 minutes)' });
    const world = new World('2026-11-29T10:00:00Z', rate);
    await world.sweep();
    for (const time of ['10:07:13', '10:17:13', '10:27:14', '10:47:13'])
      await world.deliver(rate, `2026-11-29T${time}Z`);
    await world.pass(hour).sweep();
    expect(await slots('missed', 'rate')).toEqual(['11-29 10:37']);
  });

  it('of a rule that never fires are noticed too', async () => {
    const world = new World('2026-11-29T10:00:00Z', job({ name: 'rate', schedule: 'rate(1 hour)' }));
    await world.sweep();
    await world.pass(3 * hour).sweep();
    expect(await slots('missed', 'rate')).toEqual(['11-29 11:00', '11-29 12:00']);
  });

  it('are none of before a job, or its schedule, was known; nor of one that is disabled', async () => {
    const world = new World('2026-11-29T10:30:00Z', job());
    await world.sweep();
    await world.pass(hour).deliver(world.jobs[0] as Job, '2026-11-29T11:00:00Z');
    world.jobs = [
      job({ schedule: 'cron(15 * * * ? *)' }),
      job({ name: 'added' }),
      job({ name: 'off', enabled: false }),
    ];
    expect(await world.pass(20 * minute).sweep()).toMatchObject({ missed: 0 });
    world.jobs = [job({ schedule: 'cron(15 * * * ? *)', enabled: false }), job({ name: 'added' })];
    expect(await world.pass(5 * hour).sweep()).toMatchObject({ missed: 5 }); // of `added` alone
    world.jobs = [job({ schedule: 'cron(15 * * * ? *)' }), job({ name: 'added' })];
    expect(await world.sweep()).toMatchObject({ missed: 0 });
    expect(await world.pass(50 * minute).sweep()).toMatchObject({ missed: 2 });
    expect(await slots('missed')).toEqual(['11-29 17:15']);
  });

  it('are none of a schedule that is disabled, beside one that is not', async () => {
    const schedule = ['cron(0 * * * ? *)', { at: 'cron(30 * * * ? *)', enabled: false }];
    const world = new World('2026-11-29T10:40:00Z', job({ schedule, catchUp: 'all' }));
    await world.sweep();
    expect(await world.pass(2 * hour).sweep()).toMatchObject({ missed: 2 });
    expect(await slots('missed')).toEqual(['11-29 11:00', '11-29 12:00']);
  });

  it('are such only once their flexible window is over', async () => {
    const schedule = { at: 'cron(0 * * * ? *)', flexibleMinutes: 30 };
    const world = new World('2026-11-29T10:40:00Z', job({ schedule, catchUp: 'all' }));
    await world.sweep();
    expect(await world.pass(54 * minute).sweep()).toMatchObject({ missed: 0, caughtUp: 0 }); // 11:34
    await world.deliver(world.jobs[0] as Job, '2026-11-29T11:00:00Z');
    expect(await world.pass(hour).sweep()).toMatchObject({ missed: 0, caughtUp: 0 }); // 12:34
    expect(await world.pass(2 * minute).sweep()).toMatchObject({ missed: 1, caughtUp: 1 });
    expect(await slots('missed')).toEqual(['11-29 12:00']);
  });

  it('keep to a schedule’s start and end', async () => {
    const bounded = { at: 'cron(0 * * * ? *)', start: '2026-11-29T12:00:00Z', end: '2026-11-29T14:00:00Z' };
    const world = new World('2026-11-29T10:00:00Z', job({ schedule: bounded }));
    await world.sweep();
    await world.pass(10 * hour).sweep();
    expect(await slots('missed')).toEqual(['11-29 13:00', '11-29 14:00']);
  });
});

/** What becomes of the slots 11:00 to 14:00 that were not delivered, by policy and by what happened. */
describe.each<[JobOptions['catchUp'] & {}, Partial<JobOptions>, string[]]>([
  ['skip', {}, []],
  ['one', {}, ['14:00']],
  ['all', {}, ['11:00', '12:00', '13:00', '14:00']],
  ['all', { catchUpLimit: 2 }, ['11:00', '12:00']],
  ['all', { startDeadlineMs: 2.5 * hour }, ['12:00', '13:00', '14:00']],
  ['one', { startDeadlineMs: 5 * minute }, []],
])('catchUp %s with %o', (catchUp, options, caughtUp) => {
  const times = (world: World) => world.asked.map(({ cronce }) => cronce.slot.slice(11, 16));

  it(`after an outage runs ${caughtUp.join(', ') || 'nothing'}`, async () => {
    const world = new World('2026-11-29T10:30:00Z', job({ catchUp, ...options }));
    await world.sweep();
    expect(await world.pass(4 * hour - 20 * minute).sweep()).toMatchObject({
      missed: 4,
      owed: caughtUp.length,
      caughtUp: Math.min(1, caughtUp.length),
    });
    expect(times(world), 'one at a time').toEqual(caughtUp.slice(0, 1));
    expect(
      (await world.runAsked()).map(({ slot, status, trigger }) => [slot.slice(11, 16), status, trigger]),
    ).toEqual(caughtUp.map((time) => [time, 'succeeded', 'sweep']));
    expect(await world.sweep(), 'and not again').toMatchObject({ missed: 0, owed: 0, caughtUp: 0 });
  });

  it('after a pause runs nothing of the time it was paused, and calls it paused', async () => {
    const world = new World('2026-11-29T10:30:00Z', job({ catchUp, ...options }));
    await world.sweep();
    await pause('hourly', world.now);
    await world.pass(2 * hour).sweep();
    await world.pass(hour).sweep();
    await resume('hourly', world.pass(45 * minute).now);
    expect(await world.sweep()).toMatchObject({ missed: 0, caughtUp: 0 });
    expect(await slots('missed')).toEqual([]);
    expect(await slots('skipped')).toEqual(['11-29 11:00', '11-29 12:00', '11-29 13:00', '11-29 14:00']);
    expect(world.asked).toEqual([]);
  });

  it('after a redeploy with another schedule runs nothing of the time before', async () => {
    const world = new World('2026-11-29T10:30:00Z', job({ catchUp, ...options }));
    await world.sweep();
    world.jobs = [job({ catchUp, ...options, schedule: 'cron(5 * * * ? *)' })];
    expect(await world.pass(4 * hour).sweep()).toMatchObject({ missed: 0, caughtUp: 0 });
    expect(world.asked).toEqual([]);
  });
});

describe('what the sweep must not take for missed or abandoned', () => {
  it('a slot that failed and then succeeded, once its success is too old to be kept', async () => {
    let fails = true;
    const task = job({ work: async () => (fails ? Promise.reject(new Error('no')) : 1) });
    const world = new World('2026-10-01T00:00:10Z', task);
    await world.deliver(task, '2026-10-01T00:00:00Z');
    fails = false;
    expect(await world.pass(minute).deliver(task, '2026-10-01T00:00:00Z')).toMatchObject({
      status: 'succeeded',
    });
    await world.pass(day).deliver(task, '2026-10-02T00:00:00Z');
    expect(await world.pass(40 * day).sweep()).toMatchObject({ pruned: 1, redelivered: 0 });
    expect(await world.pass(hour).sweep()).toMatchObject({ redelivered: 0 });
  });

  it('a rate by the phase of the rate that it replaced', async () => {
    const world = new World('2026-11-29T00:00:00Z', job({ schedule: 'rate(2 hours)', catchUp: 'all' }));
    await world.sweep();
    for (const at of ['02', '04', '06']) await world.deliver(world.jobs[0] as Job, `2026-11-29T${at}:00:07Z`);
    await world.pass(7 * hour + 40 * minute).sweep();
    world.jobs = [job({ schedule: 'rate(3 hours)', catchUp: 'all' })];
    await world.pass(minute).sweep();
    expect(await world.pass(90 * minute).sweep()).toMatchObject({ missed: 0, caughtUp: 0 }); // it first fires at 10:40
  });

  it('a rate by the phase of a cron of the same job; nor is a cron’s delivery one of the rate', async () => {
    const both = job({ name: 'both', schedule: ['rate(4 hours)', 'cron(30 4 * * ? *)'] });
    const world = new World('2026-11-29T00:00:00Z', both);
    await world.sweep();
    for (const at of ['04:00:07', '04:30:00', '08:00:07']) await world.deliver(both, `2026-11-29T${at}Z`);
    for (const at of ['04:30:00', '08:00:07']) await world.deliver(both, `2026-11-30T${at}Z`);
    await world.pass(day + 9 * hour).sweep();
    expect(await slots('missed', 'both')).toEqual([
      '11-29 12:00',
      '11-29 16:00',
      '11-29 20:00',
      '11-30 00:00',
      '11-30 04:00',
    ]);
  });

  it('a rate that was never delivered is missed, but not caught up: its phase is not known', async () => {
    const world = new World('2026-11-29T00:01:00Z', job({ schedule: 'rate(2 hours)', catchUp: 'one' }));
    await world.sweep();
    expect(await world.pass(3 * hour).sweep()).toMatchObject({ missed: 1, caughtUp: 0 });
  });
});

describe('pause', () => {
  it('turns deliveries away, by whom and why, until it is resumed; an operator may run it all the same', async () => {
    const task = job();
    const world = new World('2026-11-29T12:00:10Z', task);
    await pause('hourly', world.now);
    await pause('hourly', world.pass(1_000).now);
    expect(await world.deliver(task, '2026-11-29T12:00:00Z')).toMatchObject({
      status: 'skipped',
      skipReason: 'paused',
    });
    expect(await db.query('SELECT paused_by, pause_reason FROM cronce.job')).toEqual([
      { paused_by: 'ann', pause_reason: 'maintenance' },
    ]);
    const byHand = deliveryFor(task, '2026-11-29T12:00:00Z', { byHand: true, trigger: 'manual' });
    expect(await coordinate(byHand, minute, world.coordinator)).toMatchObject({ status: 'succeeded' });
    await resume('hourly', world.now);
    expect(await world.deliver(task, '2026-11-29T13:00:00Z')).toMatchObject({ status: 'succeeded' });
    expect(await db.query('SELECT count(*)::int AS n, max(resumed_by) AS by FROM cronce.pause')).toEqual([
      { n: 1, by: 'bob' },
    ]);
  });
});

describe('retries', () => {
  const failing = (options: Partial<JobOptions> = {}) =>
    job({ work: async () => Promise.reject(new Error('no')), ...options });

  it.each([
    [0, [true]],
    [1, [false, true]],
    [2, [false, false, true]],
  ] as const)('of %d end in a final attempt', async (retries, finals) => {
    const task = failing({ retries });
    const world = new World('2026-11-29T12:00:10Z', task);
    const runs: RunRecord[] = [];
    while (runs.length < finals.length) runs.push(await world.deliver(task, '2026-11-29T12:00:00Z'));
    expect(runs.map(({ final }) => final)).toEqual(finals);
    expect(await world.deliver(task, '2026-11-29T12:00:00Z')).toMatchObject({ skipReason: 'duplicate' });
  });

  it('stop at an error that is not worth one', async () => {
    const task = failing({ work: async () => Promise.reject(new PermanentError('bad input')) });
    const world = new World('2026-11-29T12:00:10Z', task);
    expect(await world.deliver(task, '2026-11-29T12:00:00Z')).toMatchObject({
      status: 'failed',
      attempt: 1,
      final: true,
    });
    expect(await world.pass(hour).sweep()).toMatchObject({ redelivered: 0 });
  });

  it('that never came are made up for by the sweep, until the last', async () => {
    const task = failing();
    const world = new World('2026-11-29T12:00:10Z', task);
    await world.deliver(task, '2026-11-29T12:00:00Z');
    expect(await world.pass(5 * minute).sweep()).toMatchObject({ redelivered: 0 });
    for (const attempt of [2, 3]) {
      expect(await world.pass(11 * minute).sweep()).toMatchObject({ redelivered: 1 });
      expect(await world.runAsked()).toMatchObject([{ status: 'failed', attempt, final: attempt === 3 }]);
    }
    expect(await world.pass(hour).sweep()).toMatchObject({ redelivered: 0 });
  });

  it('keep the params and the slot of a manual run', async () => {
    const task = failing({ retries: 1 });
    const world = new World('2026-11-29T12:00:10Z', task);
    const delivery = deliveryFor(task, world.now, {
      slot: 'manual:k',
      params: { a: [1] },
      byHand: true,
      trigger: 'manual',
    });
    await coordinate(delivery, minute, world.coordinator);
    await world.pass(11 * minute).sweep();
    expect(await world.runAsked()).toMatchObject([
      { slot: 'manual:k', params: { a: [1] }, attempt: 2, final: true },
    ]);
  });

  it('come too late where the job has a deadline for its start', async () => {
    const task = job({ startDeadlineMs: 10 * minute });
    const world = new World('2026-11-29T12:10:01Z', task);
    expect(await world.deliver(task, '2026-11-29T12:00:00Z')).toMatchObject({
      status: 'skipped',
      skipReason: 'too_late',
    });
    expect(await world.deliver(task, '2026-11-29T12:01:00Z')).toMatchObject({ status: 'succeeded' });
  });
});

describe('a run whose invocation died', () => {
  /** A start record as a killed invocation leaves it. */
  async function die(world: World, task: Job, slot: string): Promise<void> {
    const dead = { ...task, work: async () => Promise.reject(new Error('unused')) };
    await coordinate(deliveryFor(dead, slot), minute, world.coordinator);
    await db.query(
      `UPDATE cronce.run SET status = 'running', finished_at = NULL, final = NULL, error = NULL, published_at = NULL, backend_pid = 1,
         lease_ms = 100 -- the tests' server may be younger than a real lease
       WHERE job = $1 AND slot = $2`,
      [task.name, slot],
    );
  }

  it.each(['rerun', 'hold'] as const)(
    'is settled as lost, told, and with afterLost %s delivered again or not',
    async (afterLost) => {
      const task = job({ afterLost });
      const world = new World('2026-11-29T12:00:10Z', task);
      await die(world, task, '2026-11-29T12:00:00Z');
      expect(await world.pass(minute).sweep({ gapMs: 60_000 }), 'too young to tell').toMatchObject({
        settled: 0,
      });
      expect(await world.sweep()).toMatchObject({ settled: 1 });
      expect(world.logger.lines.map(({ message }) => message)).toContain('hourly lost');
      expect(await world.pass(11 * minute).sweep()).toMatchObject({
        redelivered: afterLost === 'rerun' ? 1 : 0,
      });
      const again =
        afterLost === 'rerun' ? await world.runAsked() : [await world.deliver(task, '2026-11-29T12:00:00Z')];
      expect(again).toMatchObject([
        afterLost === 'rerun' ? { status: 'succeeded', attempt: 2 } : { skipReason: 'on_hold' },
      ]);
      const byHand = deliveryFor(task, '2026-11-29T12:00:00Z', { byHand: true });
      expect(await coordinate(byHand, minute, world.coordinator)).toMatchObject(
        afterLost === 'rerun' ? { skipReason: 'duplicate' } : { status: 'succeeded' },
      );
    },
  );

  it('is left alone while its backend holds the lock', async () => {
    let finish: () => void = () => undefined;
    const working = new Promise<void>((resolve) => (finish = resolve));
    const task = job({ work: async () => working });
    const world = new World('2026-11-29T12:00:10Z', task);
    const running = world.deliver(task, '2026-11-29T12:00:00Z');
    await expect
      .poll(async () => db.query(`SELECT 1 FROM cronce.run WHERE status = 'running' AND job = 'hourly'`))
      .toHaveLength(1);
    expect(await world.sweep()).toMatchObject({ settled: 0 });
    finish();
    expect(await running).toMatchObject({ status: 'succeeded' });
  });
});

describe('retention', () => {
  it('deletes old runs, but of each job neither the last success nor the last failure', async () => {
    let fails = false;
    const task = job({ retries: 0, work: async () => (fails ? Promise.reject(new Error('no')) : 1) });
    const world = new World('2026-10-01T00:00:10Z', task);
    for (let n = 0; n < 6; n++) {
      fails = n % 3 === 2;
      await world.deliver(task, new Date(world.now.getTime() - 10_000).toISOString());
      world.pass(hour);
    }
    world.pass(60 * day);
    expect(await world.sweep({ retentionMs: 30 * day })).toMatchObject({ pruned: 4 });
    expect(
      await db.query(
        `SELECT status, slot FROM cronce.run WHERE job = 'hourly' AND status <> 'missed' ORDER BY slot`,
      ),
    ).toEqual([
      { status: 'succeeded', slot: '2026-10-01T04:00:00Z' },
      { status: 'failed', slot: '2026-10-01T05:00:00Z' },
    ]);
  });
});

describe('a slot that is older than the retention', () => {
  const retained = (world: World) => ({ ...world.coordinator, retentionMs: 30 * day });
  const slot = '2026-10-01T00:00:00Z';
  const byHand = { byHand: true, trigger: 'manual' as const };

  it.each([
    ['a rule', {}],
    ['a person', byHand],
    ['the sweep', { trigger: 'sweep' as const }],
    ['a person, as a run by hand of its own', { ...byHand, slot: 'manual:an-old-one' }],
  ])('comes too late, delivered by %s: its success may be pruned', async (_whose, how) => {
    const task = job();
    const world = new World('2026-10-01T00:00:10Z', task);
    const delivery = deliveryFor(task, slot, how);
    const first = await coordinate(delivery, minute, retained(world));
    expect(first).toMatchObject({ status: 'succeeded' });
    world.pass(30 * day - minute); // known still
    expect(await coordinate(delivery, minute, retained(world))).toMatchObject({
      skipReason: 'duplicate',
      blockedBy: first.id,
    });
    await world.pass(day).deliver(task, '2026-10-31T00:00:00Z');
    expect(await world.sweep({ retentionMs: 30 * day })).toMatchObject({ pruned: 1 });
    expect(await coordinate(delivery, minute, retained(world))).toMatchObject({
      status: 'skipped',
      skipReason: 'too_late',
      final: null,
    });
    expect(world.asked).toEqual([]);
  });

  it('is none where its time is the clock’s', async () => {
    const world = new World('2026-10-01T00:00:10Z', job());
    const delivery = deliveryFor(job(), world.now, {
      ...byHand,
      slot: 'manual:now',
      scheduledForGuessed: true,
    });
    expect(await coordinate(delivery, minute, retained(world))).toMatchObject({ status: 'succeeded' });
  });
});

describe('a step has its share of the pass', () => {
  /** A pass of 8 s: what comes before publishing has nearly five of them. */
  const shortPass = async (world: World, overrides: Partial<Parameters<typeof sweepJob>[0]>) =>
    world.sweepRun(overrides, 12_000);

  async function expire(s: ReturnType<typeof stage>, n: number): Promise<void> {
    for (let at = 0; at < n; at++)
      await s.run({ status: 'cancelled', finished_at: '2026-09-01T00:00:00Z', published_at: after(0) });
  }

  it('and no more: where a delivery never ends, the rest is published and pruned all the same', async () => {
    const task = job({ catchUp: 'all' });
    const world = new World('2026-11-29T10:30:00Z', task);
    await world.sweep();
    world.pass(2 * hour);
    const s = stage(db);
    await expire(s, 3);
    const bus: Sink = { name: 'bus', send: async (all) => Promise.resolve(new Set(all.map(({ id }) => id))) };
    await s.run({ status: 'failed', final: true, publish_after: after(-60_000) });
    const run = await shortPass(world, { deliver: () => new Promise(() => undefined), sinks: [bus] });
    expect(run).toMatchObject({ status: 'failed', error: { name: 'AggregateError' } });
    expect(run.error?.message).toContain('"pruned":3');
    const [waiting] = await db.query(
      'SELECT count(*)::int AS n FROM cronce.run WHERE job = $1 AND published_at IS NULL',
      [s.job],
    );
    expect(waiting).toEqual({ n: 0 });
  }, 60_000);

  it('and publishing leaves time to prune, however much is waiting and however slow the bus', async () => {
    const world = new World('2026-11-29T12:00:10Z');
    const s = stage(db);
    await expire(s, 3);
    for (let n = 0; n < 200; n++)
      await s.run({ status: 'failed', final: true, publish_after: after(-60_000) });
    let calls = 0;
    const slow: Sink = {
      name: 'slow',
      send: async (all) => {
        calls += 1;
        await new Promise((resolve) => setTimeout(resolve, 800));
        return new Set(all.map(({ id }) => id));
      },
    };
    const run = await shortPass(world, { sinks: [slow] });
    expect(run).toMatchObject({ status: 'succeeded', output: { pruned: 3 } });
    expect(calls).toBeGreaterThan(1);
    expect((run.output as unknown as Swept).published).toBeLessThan(200);
  }, 60_000);

  it('publishing goes on past what can’t be published', async () => {
    const world = new World('2026-11-29T12:00:10Z');
    const s = stage(db);
    for (let n = 0; n < 25; n++)
      await s.run({
        status: 'failed',
        final: true,
        publish_after: after(-60_000 + n),
        output: n < 12 ? 'bad' : 'good',
      });
    const bus: Sink = {
      name: 'bus',
      send: async (all) =>
        Promise.resolve(new Set(all.filter(({ output }) => output !== 'bad').map(({ id }) => id))),
    };
    expect(await world.sweep({ sinks: [bus] })).toMatchObject({ published: 13 });
  });
});

it('a step that fails keeps no other from its turn, and fails the sweep', async () => {
  const broken = job({ name: 'broken', catchUp: 'all' });
  const world = new World('2026-11-29T10:30:00Z', broken, job());
  await world.sweep();
  world.pass(2 * hour);
  const deliver = async () => Promise.reject(new Error('no such function'));
  const failed = await world.sweepRun({ deliver });
  expect(failed).toMatchObject({
    status: 'failed',
    error: { name: 'AggregateError', errors: [{ message: 'no such function' }] },
  });
  expect(await slots('missed'), 'the other job').toHaveLength(2);
  expect(await slots('missed', 'broken')).toHaveLength(2);
  world.pass(minute);
  expect(await world.sweep(), 'what was not handed over is asked for again').toMatchObject({ caughtUp: 1 });
  expect(await world.runAsked()).toMatchObject([{ status: 'succeeded' }, { status: 'succeeded' }]);
});

it('relays what waits in the outbox, in batches, until nothing does', async () => {
  const world = new World('2026-11-29T12:00:10Z');
  const s = stage(db);
  for (let n = 0; n < 13; n++) await s.run({ status: 'failed', final: true, publish_after: after(-60_000) });
  const sent: number[] = [];
  const bus: Sink = {
    name: 'bus',
    send: async (records) => {
      sent.push(records.length);
      return Promise.resolve(new Set(records.map(({ id }) => id)));
    },
  };
  expect(await world.sweep({ sinks: [bus] })).toMatchObject({ published: 13 });
  expect(sent).toEqual([10, 3]);
  expect(await db.query(`SELECT 1 FROM cronce.run WHERE job = $1 AND published_at IS NULL`, [s.job])).toEqual(
    [],
  );
});

describe('by its defaults and in the long run', () => {
  it('leaves a start alone for as long as it may take to enter, and no longer', async () => {
    const world = new World('2026-11-29T12:00:10Z');
    const sweepByDefault = async () => {
      const options = { registry: defineJobs([]), deliver: () => Promise.resolve(), sinks: [] };
      const limits = { timeoutMs: 1_000, retentionMs: 30 * day, logger: world.logger };
      const task = sweepJob({
        ...options,
        ...limits,
        openSession: async () => Session.open(targetOf(db.url)),
      });
      const byHand = { slot: `manual:${++sweeps}`, byHand: true };
      return coordinate(deliveryFor(task, new Date(), byHand), minute, coordinatorOn(db.url));
    };
    const s = stage(db);
    await s.run({ claimed_at: after(0) });
    expect(await sweepByDefault()).toMatchObject({ output: { settled: 0 } });
    await db.query(`UPDATE cronce.run SET claimed_at = now() - interval '7.1 s' WHERE job = $1`, [s.job]);
    expect(await sweepByDefault()).toMatchObject({ output: { settled: 1 } });
  });

  it('takes none of a healthy job’s slots for missed once their records are pruned', async () => {
    const task = job();
    const world = new World('2026-11-29T00:10:00Z', task);
    let pruned = 0;
    for (let n = 0; n < 16; n++) {
      const swept = await world.sweep({ retentionMs: 8 * hour });
      expect(swept).toMatchObject({ missed: 0, caughtUp: 0 });
      pruned += swept.pruned;
      world.pass(hour);
      await world.deliver(task, new Date(world.now.getTime() - 10 * minute).toISOString());
    }
    expect(pruned).toBeGreaterThan(4);
  });

  it('does not catch up for a job that was paused after it had missed', async () => {
    const task = job({ catchUp: 'all' });
    const world = new World('2026-11-29T10:30:00Z', task);
    await world.sweep();
    world.pass(2 * hour);
    await pause('hourly', world.now);
    expect(await world.pass(10 * minute).sweep()).toMatchObject({ missed: 2, paused: 0, caughtUp: 0 });
    expect(world.asked).toEqual([]);
  });

  it('takes a manual run neither for a delivery nor for the phase of a rate', async () => {
    const task = job({ schedule: 'rate(1 hour)' });
    const world = new World('2026-11-29T10:00:00Z', task);
    await world.sweep();
    await world.deliver(task, '2026-11-29T10:20:00Z');
    const byHand = (at: string) =>
      deliveryFor(task, at, { slot: `manual:${at}`, trigger: 'manual', byHand: true });
    for (const at of ['2026-11-29T11:20:00Z', '2026-11-29T11:50:00Z'])
      await coordinate(byHand(at), minute, world.coordinator);
    world.now = new Date('2026-11-29T12:40:00Z');
    await world.sweep();
    expect(await slots('missed')).toEqual(['26-11-29 11:20', '26-11-29 12:20'].map((one) => one.slice(3)));
  });
});
