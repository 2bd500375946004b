/** What a delivery leaves on record where its event says too little, too much, or what can't be. */
import type { Context } from 'aws-lambda';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { invoke } from '../../src/lambda/invocation.ts';
import { coordinate, type Coordinator } from '../../src/coordinate.ts';
import { defineJob, defineJobs, type Job, type JobOptions } from '../../src/job.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';
import { sweepJob } from '../../src/sweep/sweep.ts';
import { deliveryOf, TriggerError } from '../../src/path/trigger.ts';
import { coordinatorOn, deliveryFor, keepingLogger, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';

let db: TestDatabase;
let made = 0;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

function job(options: Partial<JobOptions> = {}): Job {
  return defineJob({
    name: `job-${++made}`,
    schedule: 'cron(0 12 * * ? *)',
    work: async () => 1,
    ...options,
  });
}

/** One delivery of an event, at a time, by a request id, as the job's own function understands it. */
async function deliver(task: Job, event: unknown, now: string, requestId: string | null): Promise<RunRecord> {
  const own = { registry: defineJobs([task]), ownJob: task.name };
  const delivery = deliveryOf(event, { ...own, deliveryId: requestId, now: new Date(now) });
  return coordinate(delivery, 60_000, coordinatorOn(db.url));
}

const context = (awsRequestId: string) =>
  ({ awsRequestId, getRemainingTimeInMillis: () => 60_000 }) as unknown as Context;

async function recordsOf({ name }: Job): Promise<Record<string, unknown>[]> {
  return db.query('SELECT * FROM cronce.run WHERE job = $1 ORDER BY id', [name]);
}

/** A pass over these jobs; its failures are the test's. */
async function sweep(tasks: readonly Job[], now: Date): Promise<unknown> {
  const pass = sweepJob({
    registry: defineJobs(tasks),
    deliver: async () => undefined,
    openSession: async () => Session.open(targetOf(db.url)),
    sinks: [],
    logger: keepingLogger(),
    timeoutMs: 1_000,
    retentionMs: 30 * 86_400_000,
    gapMs: 0,
    clock: () => now,
  });
  const own = { slot: `manual:${++made}`, byHand: true };
  const run = await coordinate(deliveryFor(pass, now, own), 60_000, coordinatorOn(db.url));
  expect([run.status, run.error]).toEqual(['succeeded', null]);
  return run.output;
}

describe('E3: an event without a time', () => {
  it.each([null, {}, { params: { n: 1 } }, { scheduledTime: '<aws.scheduler.scheduled-time>' }])(
    'is guessed once for a request id, over midnight and noon: %j',
    async (event) => {
      const task = job();
      const [first, again] = [
        await deliver(task, event, '2026-11-29T11:59:59.900Z', 'one'),
        await deliver(task, event, '2026-11-29T12:00:00.100Z', 'one'),
      ];
      expect(first).toMatchObject({ slot: '2026-11-29T11:59:00Z', slotGuessed: true, status: 'succeeded' });
      expect(again).toMatchObject({
        ...{ slot: first.slot, scheduledFor: first.scheduledFor, slotGuessed: true },
        ...{ skipReason: 'duplicate', blockedBy: first.id },
      });
      const another = await deliver(task, event, '2026-11-29T12:00:00.200Z', 'two');
      expect(another).toMatchObject({ slot: '2026-11-29T12:00:00Z', status: 'succeeded' });
    },
  );

  it('that failed and is retried a minute later is the same slot’s next attempt', async () => {
    let times = 0;
    const task = job({ work: async () => (++times < 3 ? Promise.reject(new Error('no')) : 1) });
    const runs = [
      await deliver(task, null, '2026-11-29T11:59:59.900Z', 'retried'),
      await deliver(task, null, '2026-11-29T12:01:01Z', 'retried'),
      await deliver(task, null, '2026-11-29T12:03:02Z', 'retried'),
    ];
    expect(runs.map(({ slot }) => slot)).toEqual(Array(3).fill('2026-11-29T11:59:00Z'));
    expect(runs.map(({ status, attempt }) => [status, attempt])).toEqual([
      ['failed', 1],
      ['failed', 2],
      ['succeeded', 3],
    ]);
  });

  it('at the same moment twice, by one request id, runs once', async () => {
    const task = job();
    const both = await Promise.all([
      deliver(task, null, '2026-11-29T11:59:59.900Z', 'twice'),
      deliver(task, null, '2026-11-29T12:00:00.100Z', 'twice'),
    ]);
    const again = await deliver(task, null, '2026-11-29T12:05:00Z', 'twice');
    const all = [...both, again];
    expect(all.filter(({ status }) => status === 'succeeded')).toHaveLength(1);
    expect(new Set(all.map(({ slot }) => slot)).size).toBe(1);
  });

  it('of two jobs with one request id, each is guessed for itself', async () => {
    const [one, other] = [job(), job()];
    await deliver(one, null, '2026-11-29T11:59:59Z', 'shared');
    expect(await deliver(other, null, '2026-11-29T12:00:00Z', 'shared')).toMatchObject({
      ...{ slot: '2026-11-29T12:00:00Z', status: 'succeeded' },
    });
  });

  it('is not what an event with a time, by the same request id, is about', async () => {
    const task = job();
    await deliver(task, null, '2026-11-29T11:59:59Z', 'mixed');
    const named = { job: task.name, scheduledTime: '2026-11-29T12:00:00Z' };
    expect(await deliver(task, named, '2026-11-29T12:00:01Z', 'mixed')).toMatchObject({
      ...{ slot: '2026-11-29T12:00:00Z', slotGuessed: false, status: 'succeeded' },
    });
  });

  it('of a lock by slot is guarded under the slot that was guessed first', async () => {
    const task = job({ overlap: 'allow' });
    await deliver(task, null, '2026-11-29T11:59:59.900Z', 'allowed');
    expect(await deliver(task, null, '2026-11-29T12:00:00.100Z', 'allowed')).toMatchObject({
      ...{ slot: '2026-11-29T11:59:00Z', skipReason: 'duplicate' },
      lockName: `${task.name}@2026-11-29T11:59:00Z`,
    });
  });

  it('without a request id is the clock’s each time', async () => {
    const task = job();
    expect(await deliver(task, null, '2026-11-29T11:59:59Z', null)).toMatchObject({ status: 'succeeded' });
    expect(await deliver(task, null, '2026-11-29T12:00:00Z', null)).toMatchObject({ status: 'succeeded' });
  });
});

describe('E4: a run by hand', () => {
  it('has one time, that of its first delivery, over the turn of a year', async () => {
    let fails = true;
    const task = job({ work: async () => (fails ? Promise.reject(new Error('no')) : 1) });
    const event = { cronce: { job: task.name, trigger: 'manual', slot: 'manual:close' } };
    const first = await deliver(task, event, '2026-12-31T23:59:30Z', 'one');
    fails = false;
    const runs = [
      first,
      await deliver(task, event, '2027-01-01T00:00:31Z', 'one'),
      await deliver(task, event, '2027-01-01T00:02:00Z', 'two'),
    ];
    expect(runs.map(({ scheduledFor }) => scheduledFor)).toEqual(Array(3).fill('2026-12-31T23:59:30.000Z'));
    expect(runs.map(({ status }) => status)).toEqual(['failed', 'succeeded', 'skipped']);
  });

  it('has the time that its request says', async () => {
    const task = job();
    const event = {
      cronce: { job: task.name, trigger: 'manual', slot: 'manual:a', scheduledFor: '2026-12-31T23:59:29Z' },
    };
    expect(await deliver(task, event, '2027-01-01T00:00:31Z', 'one')).toMatchObject({
      scheduledFor: '2026-12-31T23:59:29.000Z',
    });
  });

  it('is told its time as it is on record', async () => {
    const seen: string[] = [];
    const task = job({
      work: async ({ scheduledFor }) => {
        seen.push(scheduledFor.toISOString());
        if (seen.length === 1) throw new Error('no');
      },
    });
    const event = { cronce: { job: task.name, trigger: 'manual', slot: 'manual:close' } };
    await deliver(task, event, '2026-12-31T23:59:30Z', 'one');
    await deliver(task, event, '2027-01-01T00:00:31Z', 'one');
    expect(seen).toEqual(Array(2).fill('2026-12-31T23:59:30.000Z'));
  });
});

describe('E1: a time that is none of the schedule’s', () => {
  const event = (task: Job, time: string) => ({ job: task.name, scheduledTime: time });

  it('is recorded and not run, each time, and misses nothing', async () => {
    const task = job();
    for (let n = 0; n < 2; n++)
      expect(
        await deliver(task, event(task, '2026-11-29T12:30:00Z'), '2026-11-29T12:30:01Z', 'x'),
      ).toMatchObject({
        ...{ status: 'skipped', skipReason: 'off_schedule', final: null, slot: '2026-11-29T12:30:00Z' },
      });
  });

  it('runs where its slot is known already: a schedule has changed since', async () => {
    const task = job({ work: async () => Promise.reject(new Error('no')) });
    const noon = '2026-11-29T12:00:00Z';
    expect(await deliver(task, event(task, noon), noon, 'a')).toMatchObject({
      status: 'failed',
      final: false,
    });
    const changed = { ...job({ schedule: 'cron(0 13 * * ? *)' }), name: task.name };
    expect(await deliver(changed, event(task, noon), noon, 'a')).toMatchObject({
      status: 'succeeded',
      attempt: 2,
    });
    expect(await deliver(changed, event(task, noon), noon, 'b')).toMatchObject({ skipReason: 'duplicate' });
  });

  it('is no missed slot’s delivery', async () => {
    const task = job({ schedule: 'cron(0 * * * ? *)' });
    await sweep([task], new Date('2026-11-29T11:30:00Z'));
    await deliver(
      { ...task, schedules: [] },
      event(task, '2026-11-29T12:00:00Z'),
      '2026-11-29T12:00:01Z',
      'x',
    );
    await db.query(
      `UPDATE cronce.run SET skip_reason = 'off_schedule', status = 'skipped', fence = NULL, attempt = NULL,
      started_at = NULL, final = NULL WHERE job = $1`,
      [task.name],
    );
    expect(await sweep([task], new Date('2026-11-29T12:30:00Z'))).toMatchObject({ missed: 1 });
  });
});

describe('an event that can’t be understood', () => {
  const hostile: [string, (name: string) => unknown][] = [
    ['a text', () => 'now'],
    ['an SQS batch', () => ({ Records: [{ body: '{}' }] })],
    ['a warm-up', () => ({ source: 'serverless-plugin-warmup' })],
    ['a misspelt time', () => ({ scheduled_time: '2026-11-29T12:00:00Z' })],
    ['a list', () => []],
    ['a number', () => 7],
    [
      'a slot of 3,000 characters',
      (job) => ({ cronce: { job, trigger: 'manual', slot: `manual:${'x'.repeat(3_000)}` } }),
    ],
    [
      'NUL in requestedBy',
      (job) => ({ cronce: { job, trigger: 'manual', slot: 'manual:a', requestedBy: '\u0000' } }),
    ],
    ['the year 0', (job) => ({ cronce: { job, trigger: 'manual', slot: '0000-01-01T00:00:00Z' } })],
    ['another job', () => ({ cronce: { job: 'another', trigger: 'manual', slot: 'manual:a' } })],
    ['keys with NUL and lone surrogates', () => ({ 'a\u0000\ud800': 1 })],
    [
      'an object whose keys are many',
      () => Object.fromEntries(Array.from({ length: 5_000 }, (_, n) => [`k${n}`, n])),
    ],
    [
      'params of 30,000 lists in each other',
      (job) => ({
        job,
        scheduledTime: '2026-11-29T12:00:00Z',
        params: JSON.parse('['.repeat(30_000) + ']'.repeat(30_000)) as unknown,
      }),
    ],
  ];

  it.each(hostile)('leaves a record, failed for good, and is told: %s', async (_what, eventOf) => {
    const ran: string[] = [];
    const task = job({ work: async ({ slot }) => void ran.push(slot) });
    const logger = keepingLogger();
    const coordinator: Coordinator = coordinatorOn(db.url, { logger, deployment: 'shop' });
    const own = { registry: defineJobs([task]), ownJob: task.name };
    const answer = await invoke(eventOf(task.name), context('request-1'), coordinator, own);
    expect(answer).toMatchObject({
      job: task.name,
      status: 'failed',
      final: true,
      slot: 'refused:request-1',
    });
    expect(await recordsOf(task)).toMatchObject([
      {
        ...{ status: 'failed', final: true, deployment: 'shop', delivery_id: 'request-1', lock_key: null },
        error: { name: 'TriggerError', message: expect.any(String) as string },
      },
    ]);
    expect(logger.lines.filter(({ message }) => message === `${task.name} failed`)).toHaveLength(1);
    await expect.poll(async () => (await recordsOf(task))[0]?.['published_at']).not.toBeNull();
    expect(ran).toEqual([]);
    // It stands in the way of nothing, delivered again neither.
    expect(await invoke(eventOf(task.name), context('request-1'), coordinator, own)).toMatchObject({
      status: 'failed',
    });
    expect(await invoke(null, context('request-2'), coordinator, own)).toMatchObject({ status: 'succeeded' });
  });

  it('and belongs to no job is thrown, for the dead letters', async () => {
    const task = job();
    const own = { registry: defineJobs([task]), ownJob: null };
    for (const event of [
      'now',
      { cronce: {} },
      null,
      { job: 'nobody', scheduledTime: '2026-11-29T12:00:00Z' },
    ])
      await expect(invoke(event, context('x'), coordinatorOn(db.url), own)).rejects.toThrow(TriggerError);
    expect(await recordsOf(task)).toEqual([]);
  });
});

describe('E5: a lock that can’t be named', () => {
  const hostile: [string, unknown][] = [
    ['throws', (params: { tenant: { id: string } }) => `tenant:${params.tenant.id}`],
    [
      'throws nothing at all',
      () => {
        throw undefined as unknown as Error;
      },
    ],
    ['answers undefined', () => undefined],
    ['answers an empty text', () => ''],
    ['answers a promise', async () => 'a'],
    ['answers a promise that fails', async () => Promise.reject(new Error('late'))],
    ['answers an object', () => ({})],
    [
      'answers a revoked proxy',
      () => {
        const { proxy, revoke } = Proxy.revocable({}, {});
        revoke();
        return proxy;
      },
    ],
    ['answers text with NUL', () => 'a\u0000b'],
    ['answers a lone surrogate', () => '\ud800'],
    ['answers a long text', () => 'x'.repeat(201)],
    ['answers a number', () => 42],
    ['answers too large an integer', () => 2n ** 63n],
  ];

  it.each(hostile)('is a failure on record, for good, and the sweep goes on: %s', async (_what, lock) => {
    const ran: string[] = [];
    const task = job({ lock: lock as () => string, work: async ({ slot }) => void ran.push(slot) });
    const logger = keepingLogger();
    const own = { registry: defineJobs([task]), ownJob: task.name };
    const on = coordinatorOn(db.url, { logger });
    const event = { job: task.name, scheduledTime: '2026-11-29T12:00:00Z' };
    expect(await invoke(event, context('r'), on, own)).toMatchObject({ status: 'failed', final: true });
    expect(await recordsOf(task)).toMatchObject([
      {
        ...{ slot: '2026-11-29T12:00:00Z', status: 'failed', lock_key: null },
        error: { name: 'LockNameError', message: expect.stringContaining('its lock function') as string },
      },
    ]);
    expect(logger.lines.map(({ message }) => message)).toContain(`${task.name} failed`);
    expect(ran).toEqual([]);
    await sweep([task], new Date('2026-11-29T11:30:00Z'));
    expect(await sweep([task], new Date('2026-11-29T13:30:00Z'))).toMatchObject({
      missed: 0,
      redelivered: 0,
      caughtUp: 0,
    });
  });
});
