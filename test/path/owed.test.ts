import { randomUUID } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { defineJob, type Job, type JobOptions } from '../../src/job.ts';
import type { RunRecord } from '../../src/run.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { until } from '../support/rivals.ts';
import { VirtualWorld } from '../support/virtual.ts';

/** Owed slots are bounded and ordered over a job and an outage, and follow each other: nothing is lost by catching up. */

const minute = 60_000;
const hour = 60 * minute;
const day = 24 * hour;

let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

class World extends VirtualWorld {
  readonly deployment: string;

  constructor(now: string, ...jobs: Job[]) {
    const deployment = `owed-${randomUUID()}`;
    super(db.url, now, jobs, deployment);
    this.deployment = deployment;
  }

  async count(where: string): Promise<number> {
    const rows = await db.query(
      `SELECT FROM cronce.run WHERE deployment = $1 AND job <> 'sweep' AND ${where}`,
      [this.deployment],
    );
    return rows.length;
  }

  async paused(paused: boolean): Promise<void> {
    const call = paused
      ? `pause_job('hourly', 'ann', 'a look', $1, $2)`
      : `resume_job('hourly', 'bob', $1, $2)`;
    await db.query(`SELECT cronce.${call}`, [this.now, this.deployment]);
  }
}

function job(options: Partial<JobOptions> = {}): Job {
  const work = async () => Promise.resolve(1);
  // What a job does here lasts no time, or as long as the test says: there is nothing to wait for after it.
  return defineJob({ name: 'hourly', schedule: 'cron(0 * * * ? *)', lockDelayMs: 0, work, ...options });
}

/** Work that lasts until it is told to end; `begun` once it has. */
function lasting(options: Partial<JobOptions> = {}) {
  const begun: string[] = [];
  const open: (() => void)[] = [];
  const work: Job['work'] = async ({ slot }) => {
    begun.push(slot);
    await new Promise<void>((resolve) => open.push(resolve));
  };
  return { task: job({ work, ...options }), begun, end: () => open.splice(0).forEach((end) => end()) };
}

const times = (runs: readonly RunRecord[]) => runs.map(({ slot }) => slot.slice(8, 16).replace('T', ' '));
const outcomes = (runs: readonly RunRecord[]) =>
  runs.map(({ slot, status, skipReason }) => `${slot.slice(11, 16)} ${skipReason ?? status}`);

/** Known at 10:30, and swept again after an outage of so long. */
async function after(outageMs: number, ...jobs: Job[]): Promise<World> {
  const world = new World('2026-11-20T10:30:00Z', ...jobs);
  await world.sweep();
  await world.pass(outageMs).sweep();
  return world;
}

describe('F1: an outage of six hours', () => {
  const all = ['11:00', '12:00', '13:00', '14:00', '15:00', '16:00'].map((time) => `${time} succeeded`);

  it.each<[string, Partial<JobOptions>]>([
    ['of a job by itself', {}],
    ['of one whose slots may overlap', { overlap: 'allow' }],
    ['of one with several places', { places: 3 }],
    ['of one that waits', { overlap: 'wait' }],
    ['of one that replaces', { overlap: 'replace' }],
  ])('%s is caught up slot by slot, oldest first, and none is held', async (_what, options) => {
    const world = await after(6 * hour - 20 * minute, job({ catchUp: 'all', ...options }));
    expect(world.asked).toHaveLength(1);
    expect(outcomes(await world.runAsked())).toEqual(all);
    expect(await world.pass(20 * minute).sweep()).toMatchObject({ caughtUp: 0, redelivered: 0 });
    expect(world.asked).toEqual([]);
  });
});

describe('F2: bounds and order are of the job and the outage', () => {
  const minutely = 'cron(* * * * ? *)';
  const thrice = ['cron(0 * * * ? *)', 'cron(20 * * * ? *)', 'cron(40 * * * ? *)'];
  const long = ['cron(0/2 * * * ? *)', 'cron(1/2 * * * ? *)'];

  it.each<[string, Partial<JobOptions>, number, string[]]>([
    ['due each minute, 20 hours, one', { schedule: minutely, catchUp: 'one' }, 20 * hour, ['21 06:25']],
    [
      '… all, three of them',
      { schedule: minutely, catchUp: 'all', catchUpLimit: 3 },
      20 * hour,
      ['20 10:31', '20 10:32', '20 10:33'],
    ],
    ['three schedules, one', { schedule: thrice, catchUp: 'one' }, 5 * hour, ['20 15:20']],
    [
      '… all, four of them',
      { schedule: thrice, catchUp: 'all', catchUpLimit: 4 },
      5 * hour,
      ['20 10:40', '20 11:00', '20 11:20', '20 11:40'],
    ],
    ['two days of two schedules, in pages, one', { schedule: long, catchUp: 'one' }, 2 * day, ['22 10:25']],
    [
      '… all, three of them',
      { schedule: long, catchUp: 'all', catchUpLimit: 3 },
      2 * day,
      ['20 10:31', '20 10:32', '20 10:33'],
    ],
  ])(
    '%s',
    async (_what, options, outageMs, expected) => {
      const world = await after(outageMs, job(options));
      const runs = await world.runAsked();
      for (let pass = 0; pass < 3; pass++) {
        await world.sweep(); // of the same moment: the next page, if there is one
        runs.push(...(await world.runAsked()));
      }
      expect(times(runs)).toEqual(expected);
      expect(outcomes(runs).every((outcome) => outcome.endsWith('succeeded'))).toBe(true);
      expect(await world.count(`status = 'missed' AND scheduled_for > '2026-11-20 10:30Z'`)).toBeGreaterThan(
        expected.length,
      );
    },
    240_000,
  );

  it.each<[Partial<JobOptions>, string[], string[]]>([
    [{ catchUp: 'one' }, ['20 11:00'], ['20 17:00']],
    [{ catchUp: 'all', catchUpLimit: 2 }, ['20 11:00', '20 12:00'], ['20 17:00', '20 18:00']],
  ])(
    'a dead rule beside a living sweep is one outage, until it comes back: %o',
    async (policy, first, second) => {
      const task = job(policy);
      const world = new World('2026-11-20T10:30:00Z', task);
      const hours = async (n: number) => {
        const runs: RunRecord[] = [];
        for (let passed = 0; passed < n; passed++) {
          await world.pass(hour).sweep();
          runs.push(...(await world.runAsked()));
        }
        return times(runs);
      };
      await world.sweep();
      expect(await hours(5)).toEqual(first);
      await world.pass(hour).deliver(task, '2026-11-20T16:00:00Z');
      expect(await hours(4)).toEqual(second);
    },
  );

  it('one that was not asked for yet gives way to a later one: a pause, and the latest of them all', async () => {
    const world = new World('2026-11-20T10:30:00Z', job({ catchUp: 'one' }));
    await world.sweep();
    world.pass(40 * minute);
    await world.paused(true);
    expect(await world.sweep()).toMatchObject({ missed: 1, owed: 1, caughtUp: 0 });
    await world.paused(false);
    const deliver = async () => Promise.reject(new Error('Lambda is out'));
    expect(await world.pass(hour).sweepRun({ deliver })).toMatchObject({ status: 'failed' });
    expect(await world.pass(hour).sweep()).toMatchObject({ missed: 1, owed: 1, caughtUp: 1 });
    expect(times(await world.runAsked())).toEqual(['20 13:00']);
    expect(await world.sweep()).toMatchObject({ caughtUp: 0 });
  });
});

describe('F4: two windows of one expression', () => {
  const at = 'cron(0 * * * ? *)';
  const [early, late] = [
    { at, end: '2026-11-20T12:00:00Z' },
    { at, start: '2026-11-20T14:30:00Z' },
  ];

  it.each<[string, JobOptions['schedule'] & {}]>([
    ['both deployed', [early, late]],
    ['in the other order', [late, early]],
  ])('are accounted for, each: %s', async (_what, schedule) => {
    const world = await after(6 * hour, job({ schedule, catchUp: 'all' }));
    expect(times(await world.runAsked())).toEqual(['20 11:00', '20 12:00', '20 15:00', '20 16:00']);
    expect(await world.count(`status = 'missed'`)).toBe(4);
  });

  it.each<[string, JobOptions['schedule'] & {}, string[]]>([
    ['the first', late, ['20 11:00', '20 15:00']],
    ['the second', early, ['20 11:00', '20 12:00']],
    ['both', [], ['20 11:00']],
  ])('… also when one was taken out before any sweep had done so: %s', async (_what, schedule, expected) => {
    const world = new World('2026-11-20T10:30:00Z', job({ schedule: [early, late] }));
    await world.sweep();
    await world.pass(32 * minute).sweep(); // 11:00 may still come
    world.jobs = [job({ schedule })];
    await world.pass(minute).sweep();
    for (let passed = 0; passed < 5; passed++) await world.pass(hour).sweep();
    const rows = await db.query(
      `SELECT slot FROM cronce.run WHERE deployment = $1 AND status = 'missed' ORDER BY scheduled_for`,
      [world.deployment],
    );
    expect(times(rows as unknown as RunRecord[])).toEqual(expected);
    const known = await db.query('SELECT FROM cronce.schedule WHERE deployment = $1', [world.deployment]);
    expect(known, 'what is gone and done with is forgotten').toHaveLength(job({ schedule }).schedules.length);
  });
});

describe('a slot of its time', () => {
  it('that a catch-up turned away is owed, and runs in its turn', async () => {
    const { task, begun, end } = lasting({ catchUp: 'all' });
    const world = await after(2 * hour, task); // 11:00 and 12:00
    const first = world.runAsked();
    await until(() => begun.length === 1);
    world.pass(30 * minute);
    const turnedAway = await world.deliver(task, '2026-11-20T13:00:00Z');
    expect(turnedAway).toMatchObject({ skipReason: 'held', final: false });
    expect(await world.deliver(task, '2026-11-20T13:00:00Z'), 'its duplicate').toMatchObject({
      skipReason: 'held',
    });
    const done = first.then((runs) => runs);
    for (let n = 2; n <= 3; n++) {
      end();
      await until(() => begun.length === n);
    }
    end();
    expect(outcomes(await done)).toEqual(['11:00 succeeded', '12:00 succeeded', '13:00 succeeded']);
    expect(await world.pass(20 * minute).sweep(), 'and only once').toMatchObject({ redelivered: 0 });
  });

  it('that met nobody who catches up is held as ever, and not owed', async () => {
    const { task, begun, end } = lasting();
    const world = new World('2026-11-20T11:00:10Z', task);
    const running = world.deliver(task, '2026-11-20T11:00:00Z');
    await until(() => begun.length === 1);
    expect(await world.deliver(task, '2026-11-20T12:00:00Z')).toMatchObject({
      skipReason: 'held',
      final: null,
    });
    end();
    await running;
  });

  it('goes before one that catches up, which waits for it, and is asked for when it ends', async () => {
    const { task, begun, end } = lasting({ catchUp: 'all', overlap: 'replace', waitMs: 1_000 });
    const world = await after(2 * hour, task);
    const running = world.pass(30 * minute).deliver(task, '2026-11-20T13:00:00Z');
    await until(() => begun.length === 1);
    const [caughtUp] = await Promise.all([world.runAsked()]);
    expect(outcomes(caughtUp), 'it asks nobody to give way').toEqual(['11:00 held']);
    end();
    expect(await running).toMatchObject({ status: 'succeeded' });
    expect(world.asked.map(({ cronce }) => cronce.slot)).toEqual(['2026-11-20T11:00:00Z']);
  });

  it('replaces one that catches up where that is the policy', async () => {
    const { task, begun, end } = lasting({ catchUp: 'all', overlap: 'replace', leaseMs: 2_000 });
    const replaced = {
      ...task,
      work: async (context: Parameters<Job['work']>[0]) => {
        const stopped = new Promise<never>((_, reject) =>
          context.signal.addEventListener('abort', () => reject(context.signal.reason as Error)),
        );
        return Promise.race([task.work(context), stopped]);
      },
    };
    const world = await after(2 * hour, replaced);
    const catchingUp = world.run(world.asked.shift() as never);
    await until(() => begun.length === 1);
    const regular = world.pass(30 * minute).deliver(replaced, '2026-11-20T13:00:00Z');
    await until(() => begun.length === 2);
    end();
    expect(await catchingUp).toMatchObject({ status: 'cancelled' });
    expect(await regular).toMatchObject({ status: 'succeeded' });
  });
});

describe('what is owed', () => {
  it('waits while the job is paused, also where it was asked for before', async () => {
    const task = job({ catchUp: 'all' });
    const world = await after(3 * hour, task);
    await world.paused(true);
    expect(outcomes(await world.runAsked())).toEqual(['11:00 paused']);
    expect(await world.pass(20 * minute).sweep()).toMatchObject({ caughtUp: 0, redelivered: 0 });
    await world.paused(false);
    await world.sweep();
    expect(outcomes(await world.runAsked())).toEqual([
      '11:00 succeeded',
      '12:00 succeeded',
      '13:00 succeeded',
    ]);
  });

  it('is asked for by a chain no longer than Lambda lets through; then the sweep begins the next', async () => {
    const world = await after(25 * hour, job({ catchUp: 'all', catchUpLimit: 24 }));
    const chains: number[] = [];
    while (world.asked.length > 0) {
      chains.push((await world.runAsked()).length);
      await world.pass(5 * minute).sweep();
    }
    expect(chains).toEqual([10, 10, 4]);
    expect(world.dropped).toEqual([]);
  }, 120_000);

  it('is not delivered for a job that was taken out, or is disabled', async () => {
    const world = await after(3 * hour, job({ catchUp: 'all' }));
    expect(outcomes([await world.run(world.asked.shift() as never)])).toEqual(['11:00 succeeded']);
    world.asked.length = 0; // lost on the way
    world.jobs = [job({ name: 'another' })];
    expect(await world.pass(20 * minute).sweep()).toMatchObject({ caughtUp: 0 });
    world.jobs = [job({ catchUp: 'all', enabled: false })];
    expect(await world.sweep()).toMatchObject({ caughtUp: 0 });
    world.jobs = [job({ catchUp: 'all' })];
    expect(await world.sweep()).toMatchObject({ caughtUp: 1 });
  });

  it('belongs to its deployment', async () => {
    const [one, other] = [
      await after(2 * hour, job({ catchUp: 'all' })),
      await after(2 * hour, job({ catchUp: 'all' })),
    ];
    one.asked.length = 0;
    other.asked.length = 0;
    expect(await one.pass(5 * minute).sweep()).toMatchObject({ caughtUp: 0 });
    expect(await other.pass(11 * minute).sweep()).toMatchObject({ caughtUp: 1 });
    expect(await other.runAsked()).toHaveLength(2);
    expect(await one.count(`status = 'succeeded'`)).toBe(0);
  });

  it('and was asked for and never came is asked for again, once that is surely so', async () => {
    const world = await after(2 * hour, job({ catchUp: 'all' }));
    world.asked.length = 0; // throttled, and then dropped
    expect(await world.pass(9 * minute).sweep()).toMatchObject({ caughtUp: 0 });
    expect(await world.pass(2 * minute).sweep()).toMatchObject({ caughtUp: 1 });
    const [late] = world.asked.splice(0);
    expect(await world.pass(11 * minute).sweep()).toMatchObject({ caughtUp: 1 });
    expect(outcomes(await world.runAsked())).toEqual(['11:00 succeeded', '12:00 succeeded']);
    expect(outcomes([await world.run(late as never)]), 'both came in the end').toEqual(['11:00 duplicate']);
  });

  it('and fails is tried again before the next has its turn', async () => {
    let fails = 1;
    const work = async () => (fails-- > 0 ? Promise.reject(new Error('no')) : Promise.resolve(1));
    const world = await after(2 * hour, job({ catchUp: 'all', work }));
    const request = world.asked[0];
    expect(outcomes(await world.runAsked())).toEqual(['11:00 failed']);
    expect(outcomes([await world.pass(minute).run(request as never)]), 'as Lambda retries it').toEqual([
      '11:00 succeeded',
    ]);
    expect(outcomes(await world.runAsked())).toEqual(['12:00 succeeded']);
  });

  it('and could not be handed over by a run is left to the sweep, and fails nobody', async () => {
    const task = job({ catchUp: 'all' });
    const world = await after(3 * hour, task);
    const request = world.asked.shift();
    const deliver = Object.getOwnPropertyDescriptor(VirtualWorld.prototype, 'coordinatorAt')
      ?.value as VirtualWorld['coordinatorAt'];
    world.coordinatorAt = (depth) => ({
      ...deliver.call(world, depth),
      deliver: async () => Promise.reject(new Error('Lambda is out')),
    });
    expect(await world.run(request as never)).toMatchObject({ status: 'succeeded' });
    expect(world.logger.lines.filter(({ level }) => level === 'warn')).toMatchObject([
      { message: 'hourly: the next owed slot was not asked for; the sweep will' },
    ]);
    world.coordinatorAt = deliver;
    expect(await world.sweep()).toMatchObject({ caughtUp: 1 });
    expect(outcomes(await world.runAsked())).toEqual(['12:00 succeeded', '13:00 succeeded']);
  });

  it('is not looked for by the run of a job that owes nothing', async () => {
    const task = job({ catchUp: 'all' });
    const world = await after(2 * hour, task);
    world.asked.length = 0;
    world.pass(30 * minute);
    await db.query('UPDATE cronce.job SET owes = false WHERE deployment = $1', [world.deployment]);
    await world.deliver(task, '2026-11-20T13:00:00Z');
    expect(world.asked).toEqual([]);
    await db.query('UPDATE cronce.job SET owes = true WHERE deployment = $1', [world.deployment]);
    await world.pass(hour).deliver(task, '2026-11-20T14:00:00Z');
    expect(world.asked).toHaveLength(1);
  });

  it('by several runs that end at once is asked for once', async () => {
    const { task, begun, end } = lasting({ catchUp: 'all', overlap: 'allow' });
    const world = await after(2 * hour, task);
    world.asked.length = 0;
    world.pass(30 * minute);
    const regular = ['13', '14', '15', '16'].map(async (at) =>
      world.deliver(task, `2026-11-20T${at}:00:00Z`),
    );
    await until(() => begun.length === 4);
    end();
    await Promise.all(regular);
    await delay(50);
    expect(world.asked.map(({ cronce }) => cronce.slot)).toEqual(['2026-11-20T11:00:00Z']);
  });
});
