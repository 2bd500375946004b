/** G3: only what was due can be run again, and what was done can be done over on purpose. */
import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { coordinate } from '../../src/coordinate.ts';
import { defineJob, defineJobs, type Job } from '../../src/job.ts';
import { deliveryOf, slotName } from '../../src/path/trigger.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { client, expectProblem } from '../support/http.ts';
import { coordinatorFor } from '../support/runs.ts';

const now = new Date('2026-11-29T14:00:00Z');
const seen: unknown[] = [];
const work: Job['work'] = async ({ scheduledFor, params }) => {
  seen.push({ scheduledFor: scheduledFor.toISOString(), params });
  return null;
};
const make = (name: string, schedule: Parameters<typeof defineJob>[0]['schedule'], enabled = true) =>
  defineJob({ name, schedule, enabled, work } as Parameters<typeof defineJob>[0]);

const registry = defineJobs([
  make('pulse', 'rate(5 minutes)'),
  make('unborn', 'rate(5 minutes)'),
  make('daily', 'cron(0 3 * * ? *)'),
  make('berlin', { at: 'cron(30 2 * * ? *)', timeZone: 'Europe/Berlin' }),
  make('season', {
    at: 'cron(0 12 * * ? *)',
    timeZone: 'UTC',
    start: '2026-11-10T12:00:00Z',
    end: '2026-11-20T12:00:00Z',
  }),
  make('seasonal-pulse', {
    at: 'rate(1 hour)',
    timeZone: 'UTC',
    start: '2026-11-10T00:00:00Z',
    end: '2026-11-11T00:00:00Z',
  }),
  make('both', ['cron(0 * * * ? *)', 'rate(7 minutes)']),
  make('rates', ['rate(5 minutes)', 'rate(1 hour)']),
  make('changed', ['cron(0 3 * * ? *)', 'cron(0 9 * * ? *)']),
  make('asleep', 'cron(0 3 * * ? *)', false),
  make('manual', undefined),
]);

let db: TestDatabase;
let http: ReturnType<typeof client>;

/** As its rule would have delivered it. */
async function deliverAt(job: string, time: string) {
  const event = { job, scheduledTime: time };
  const delivery = deliveryOf(event, { registry, ownJob: null, deliveryId: randomUUID(), now });
  return coordinate({ ...delivery, trigger: 'rule' }, 60_000, coordinatorFor(db.url));
}

const known = (job: string, since: string) =>
  db.query(
    `INSERT INTO cronce.job (name, first_seen_at) VALUES ($1, $2)
     ON CONFLICT (deployment, name) DO UPDATE SET first_seen_at = excluded.first_seen_at`,
    [job, since],
  );

beforeAll(async () => {
  db = await freshDatabase();
  http = client(db.url, { now });
  await deliverAt('pulse', '2026-11-29T11:02:15Z');
  await deliverAt('pulse', '2026-11-29T13:57:15Z');
  await deliverAt('seasonal-pulse', '2026-11-10T05:17:00Z');
  await deliverAt('both', '2026-11-29T13:00:00Z');
  await deliverAt('both', '2026-11-29T12:58:31Z');
  for (const minute of ['00', '05', '10', '15', '20'])
    await deliverAt('rates', `2026-11-29T13:${minute}:08Z`);
  await deliverAt('rates', '2026-11-29T12:32:40Z');
  await deliverAt('rates', '2026-11-29T13:32:40Z');
  await deliverAt('changed', '2026-11-01T03:00:00Z');
  await known('daily', '2026-11-20T10:00:00Z');
  await known('berlin', '2026-10-01T00:00:00Z');
  for (const job of ['season', 'asleep', 'both', 'pulse', 'rates', 'seasonal-pulse', 'changed'])
    await known(job, '2026-11-01T00:00:00Z');
  await db.query(
    `INSERT INTO cronce.schedule (job, expression, time_zone, known_since, accounted_until, deployed_at)
     SELECT 'changed', e, 'UTC', s::timestamptz, s::timestamptz, s::timestamptz
     FROM (VALUES ('cron(0 3 * * ? *)', '2026-11-02T00:00Z'), ('cron(0 9 * * ? *)', '2026-11-25T00:00Z')) v (e, s)`,
  );
  seen.length = 0;
});
afterAll(() => db.drop());
afterEach(() => {
  http.started.length = 0;
});

const again = (job: string, slot: string) =>
  http.post(`/jobs/${job}/runs`, { slot }, { app: http.appWith({ registry }) });

describe('a slot that was due', () => {
  test.each([
    ['pulse', '2026-11-29T13:52:15Z'], // five minutes before its last delivery
    ['pulse', '2026-11-29T05:02:15+00:00'],
    ['pulse', '2026-11-01T00:02:15Z'], // the first since it is known
    ['daily', '2026-11-29T03:00:00Z'],
    ['daily', '2026-11-21T03:00:00Z'],
    ['berlin', '2026-11-29T02:30:00+01:00'],
    ['berlin', '2026-10-25T02:30:00+02:00'], // the first time round
    ['season', '2026-11-10T12:00:00Z'],
    ['season', '2026-11-20T12:00:00Z'],
    ['seasonal-pulse', '2026-11-10T23:17:00Z'],
    ['both', '2026-11-29T11:00:00Z'],
    ['both', '2026-11-29T13:05:31Z'],
    ['rates', '2026-11-29T11:35:08Z'],
    ['rates', '2026-11-29T10:32:40Z'],
    ['changed', '2026-11-02T03:00:00Z'],
    ['changed', '2026-11-01T03:00:00Z'],
    ['changed', '2026-11-25T09:00:00Z'],
  ])('of %s may be run again: %s', async (job, slot) => {
    const { status, json } = await again(job, slot);
    expect([status, json['slot']]).toEqual([202, slotName(new Date(slot))]);
  });
});

describe('a slot that never was due is refused, and the nearest are told', () => {
  test.each([
    ['of the year 1083', 'pulse', '1083-09-12T07:57:15Z', undefined],
    [
      'of a rate, out of its phase',
      'pulse',
      '2026-11-29T13:52:16Z',
      ['2026-11-29T13:52:15Z', '2026-11-29T13:57:15Z'],
    ],
    [
      'of a rate, at a round time',
      'pulse',
      '2026-11-29T12:00:00Z',
      ['2026-11-29T11:57:15Z', '2026-11-29T12:02:15Z'],
    ],
    ['of a rate, before it was known', 'pulse', '2026-10-31T23:57:15Z', ['2026-11-01T00:02:15Z']],
    ['to come', 'pulse', '2026-11-29T14:02:15Z', ['2026-11-29T13:57:15Z']],
    ['long to come', 'daily', '2199-11-29T03:00:00Z', ['2026-11-29T03:00:00Z']],
    ['of a cron, before it was known', 'daily', '2026-11-20T03:00:00Z', ['2026-11-21T03:00:00Z']],
    [
      'of a cron, a second late',
      'daily',
      '2026-11-28T03:00:01Z',
      ['2026-11-28T03:00:00Z', '2026-11-29T03:00:00Z'],
    ],
    [
      'in the hour that comes twice, the second time',
      'berlin',
      '2026-10-25T02:30:00+01:00',
      ['2026-10-25T00:30:00Z', '2026-10-26T01:30:00Z'],
    ],
    ['before start', 'season', '2026-11-09T12:00:00Z', ['2026-11-10T12:00:00Z']],
    ['after end', 'season', '2026-11-21T12:00:00Z', ['2026-11-20T12:00:00Z']],
    ['of a rate, before start', 'seasonal-pulse', '2026-11-09T23:17:00Z', ['2026-11-10T00:17:00Z']],
    ['of a rate, after end', 'seasonal-pulse', '2026-11-11T00:17:00Z', ['2026-11-10T23:17:00Z']],
    [
      'of neither schedule',
      'both',
      '2026-11-29T13:05:00Z',
      ['2026-11-29T13:00:00Z', '2026-11-29T12:58:31Z', '2026-11-29T13:05:31Z', '2026-11-29T14:00:00Z'],
    ],
    [
      'in the long rate’s phase, of the short one',
      'rates',
      '2026-11-29T12:37:40Z',
      ['2026-11-29T12:35:08Z', '2026-11-29T12:40:08Z', '2026-11-29T12:32:40Z', '2026-11-29T13:32:40Z'],
    ],
    [
      'of a schedule that is newer',
      'changed',
      '2026-11-24T09:00:00Z',
      ['2026-11-24T03:00:00Z', '2026-11-25T03:00:00Z', '2026-11-25T09:00:00Z'],
    ],
    ['of a job that is not enabled', 'asleep', '2026-11-28T03:00:00Z', []],
    ['of a job without a schedule', 'manual', '2026-11-28T03:00:00Z', []],
    ['of a job never seen', 'unborn', '2026-11-28T03:00:00Z', []],
  ])('%s', async (_, job, slot, nearest) => {
    const answer = await again(job, slot);
    expectProblem(answer, 422, 'bad_slot', { pointer: '/slot' });
    expect(answer.json['nearest'] ?? []).toEqual([...(nearest ?? [])].sort());
    expect(http.started).toEqual([]);
  });

  test('for a rate that was never delivered it says why nobody can tell', async () => {
    await known('unborn', '2026-11-01T00:00:00Z');
    const answer = await again('unborn', '2026-11-28T03:00:00Z');
    expect(answer.json['detail']).toMatch(/known once it was delivered/);
  });

  test('and it is that very slot that runs, not one that lies near, or that the schedule of today would make of it', async () => {
    await db.query(
      `INSERT INTO cronce.run (id, job, slot, scheduled_for, trigger, status, lock_name, received_at, finished_at)
       VALUES (gen_random_uuid(), 'daily', '2026-11-22T11:07:09Z', '2026-11-22T11:07:09Z', 'sweep', 'missed', 'daily', now(), now())`,
    );
    // A rate's, 31 s after a cron's; and one of a rate that this job had before.
    for (const [job, slot] of [
      ['both', '2026-11-29T09:00:31Z'],
      ['daily', '2026-11-22T11:07:09Z'],
    ] as const) {
      expect((await again(job, slot)).status).toBe(202);
      const event: unknown = JSON.parse(JSON.stringify(http.started.pop()));
      const delivery = deliveryOf(event, { registry, ownJob: job, deliveryId: randomUUID(), now });
      expect(await coordinate(delivery, 60_000, coordinatorFor(db.url))).toMatchObject({
        status: 'succeeded',
        slot,
      });
    }
  });

  test('unless it is on record; but not by an event that was off schedule', async () => {
    await db.query(
      `INSERT INTO cronce.run (id, job, slot, scheduled_for, trigger, status, skip_reason, lock_name, received_at, finished_at)
       SELECT gen_random_uuid(), 'daily', '2026-11-25T0' || h || ':30:00Z', ('2026-11-25T0' || h || ':30:00Z')::timestamptz,
         'rule', CASE h WHEN 4 THEN 'missed' ELSE 'skipped' END, CASE h WHEN 5 THEN 'off_schedule' END, 'daily', now(), now()
       FROM unnest('{4,5}'::integer[]) h`,
    );
    expect((await again('daily', '2026-11-25T04:30:00Z')).status).toBe(202);
    expectProblem(await again('daily', '2026-11-25T05:30:00Z'), 422, 'bad_slot');
  });
});

describe('what succeeded is done over on purpose', () => {
  const run = async (body: object, headers = {}) =>
    http.post('/jobs/daily/runs', body, { app: http.appWith({ registry }), headers });

  test('by a slot of its own, whose work sees the time it is about, and whose record says why', async () => {
    await deliverAt('daily', '2026-11-28T03:00:00Z');
    const body = {
      scheduledFor: '2026-11-28T04:00:00+01:00',
      reason: 'the rates were wrong',
      params: { a: 1 },
    };
    const { status, json } = await run(body);
    expect(status).toBe(202);
    expect(json['slot']).toMatch(/^manual:[0-9a-f-]{36}$/);
    const [request] = http.started;
    expect(request?.cronce).toMatchObject({
      scheduledFor: '2026-11-28T03:00:00.000Z',
      reason: 'the rates were wrong',
      requestedBy: 'run token 1',
    });
    seen.length = 0;
    const delivery = deliveryOf(JSON.parse(JSON.stringify(request)), {
      registry,
      ownJob: 'daily',
      deliveryId: 'x',
      now,
    });
    const made = await coordinate(delivery, 60_000, coordinatorFor(db.url));
    expect(seen).toEqual([{ scheduledFor: '2026-11-28T03:00:00.000Z', params: { a: 1 } }]);
    const shown = {
      status: 'succeeded',
      requestReason: 'the rates were wrong',
      requestedBy: 'run token 1',
      scheduledFor: '2026-11-28T03:00:00.000Z',
    };
    expect(made).toMatchObject(shown);
    expect((await http.ask(`/runs/${made.id}`)).json).toMatchObject(shown);
    expect(
      (await http.ask(`/runs?job=daily&slot=${encodeURIComponent(made.slot)}`)).json['runs'],
    ).toMatchObject([shown]);
    expect((await http.ask('/')).text).toContain('the rates were wrong');
  });

  test('a reason may go with any run by hand', async () => {
    expect((await run({ slot: '2026-11-28T03:00:00Z', reason: 'again' })).status).toBe(202);
    expect((await run({ reason: '<b>why</b> ünïcode' })).status).toBe(202);
    expect(http.started.map(({ cronce }) => cronce.reason)).toEqual(['again', '<b>why</b> ünïcode']);
  });

  test.each([
    [{ scheduledFor: 'yesterday' }, 422, 'bad_time'],
    [{ scheduledFor: '2026-11-28' }, 422, 'bad_time'],
    [{ scheduledFor: '2026-02-30T00:00:00Z' }, 422, 'bad_time'],
    [{ scheduledFor: '1083-09-12T07:57:15Z' }, 422, 'bad_time'],
    [{ scheduledFor: '2026-11-29T14:00:01Z' }, 422, 'bad_time'],
    [{ scheduledFor: 5 }, 400, 'bad_body'],
    [{ scheduledFor: '2026-11-28T03:00:00Z', slot: '2026-11-28T03:00:00Z' }, 400, 'slot_and_time'],
    [{ reason: '' }, 400, 'bad_body'],
    [{ reason: 'a\nb' }, 400, 'bad_body'],
    [{ reason: 'x'.repeat(501) }, 400, 'bad_body'],
    [{ reason: null }, 400, 'bad_body'],
  ])('is refused, and nothing is started: %j', async (body, status, code) => {
    expectProblem(await run(body), status, code, { pointer: expect.any(String) as string });
    expect(http.started).toEqual([]);
  });
});
