import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { defineJob, defineJobs, type JobOptions } from '../../src/job.ts';
import { deliveryOf, TriggerError, type Delivery } from '../../src/path/trigger.ts';

interface Case {
  readonly name: string;
  readonly schedule: string;
  readonly event: unknown;
  readonly slot: string;
}

const cases = readFileSync(new URL('../cases/events.jsonl', import.meta.url), 'utf8')
  .split('\n')
  .filter(Boolean)
  .map((line) => JSON.parse(line) as Case);

const now = new Date('2026-11-30T08:15:42.123Z');
const guessed = '2026-11-30T08:15:00Z';
const noon = '2026-11-29T12:00:00Z';
const work = async () => 1;

const around = (schedule?: JobOptions['schedule'], ownJob: string | null = 'stats') => {
  const stats = defineJob({ name: 'stats', work, ...(schedule === undefined ? {} : { schedule }) });
  const other = defineJob({ name: 'other', schedule: 'rate(1 day)', work });
  return { registry: defineJobs([stats, other]), ownJob, deliveryId: 'request', now };
};

const slotOf = (event: unknown, schedule?: JobOptions['schedule']) => {
  const { slot, offSchedule } = deliveryOf(event, around(schedule));
  return offSchedule ? `off ${slot}` : slot;
};

/** What an event is refused with; the test fails if it isn't, or by another kind of error. */
function refusal(event: unknown, surroundings = around('cron(0 12 * * ? *)')): TriggerError {
  try {
    deliveryOf(event, surroundings);
  } catch (error) {
    if (error instanceof TriggerError) return error;
    throw error;
  }
  return expect.fail('it was understood');
}

const ruleEvent = (time: unknown, more: object = {}) => ({
  version: '0',
  id: '53dc4d37-cffa-4f76-80c9-8b7d4a4d2eaa',
  'detail-type': 'Scheduled Event',
  source: 'aws.events',
  account: '123456789012',
  time,
  region: 'eu-central-1',
  resources: ['arn:aws:events:eu-central-1:123456789012:rule/stats'],
  detail: {},
  ...more,
});

describe('the slot of an event', () => {
  it.each(cases)('$name', ({ schedule, event, slot }) => {
    const delivery = deliveryOf(event, around(schedule));
    expect(delivery.slotGuessed).toBe(slot === 'guessed');
    expect(delivery.slot).toBe(slot === 'guessed' ? guessed : slot);
    expect(delivery.scheduledFor.toISOString()).toBe(delivery.slot.replace('Z', '.000Z'));
    expect(delivery).toMatchObject({ byHand: false, offSchedule: false, scheduledForGuessed: false });
  });

  it.each([
    [null, 'unknown'],
    [undefined, 'unknown'],
    [{}, 'unknown'],
    [{ params: { a: 1 } }, 'unknown'],
    [{ params: undefined, job: undefined }, 'unknown'],
    [{ job: 'stats' }, 'unknown'],
    [{ job: 'stats', scheduledTime: '<aws.scheduler.scheduled-time>' }, 'rule'],
    [ruleEvent(undefined), 'rule'],
    [ruleEvent('soon', { source: 'aws.scheduler' }), 'scheduler'],
  ])('is guessed where an event names no time: %j', (event, trigger) => {
    expect(deliveryOf(event, around('cron(0 12 * * ? *)'))).toMatchObject({
      slot: guessed,
      slotGuessed: true,
      offSchedule: false,
      deliveryId: 'request',
      trigger,
    });
  });

  it('is read in any offset and fraction of ISO 8601', () => {
    const event = { scheduledTime: '2026-11-29T13:00:59.999+01:00' };
    expect(slotOf(event, 'cron(0 12 * * ? *)')).toBe(noon);
    expect(slotOf(event, 'rate(1 minute)')).toBe('2026-11-29T12:00:59Z');
  });

  it('takes params along', () => {
    expect(deliveryOf({ params: { a: [1] } }, around()).params).toEqual({ a: [1] });
    const event = { job: 'stats', scheduledTime: noon, eventId: 'x', schedule: 0, params: 5 };
    expect(deliveryOf(event, around('cron(0 12 * * ? *)'))).toMatchObject({ params: 5, trigger: 'rule' });
  });
});

describe('E1: a time is an occurrence of the schedule', () => {
  const daily = 'cron(0 17 * * ? *)';
  const five = '2026-11-29T17:00:00Z';
  it.each([
    ['16:59:54.999', `off 2026-11-29T16:59:00Z`],
    ['16:59:55', five],
    ['16:59:59', five],
    ['17:00:00', five],
    ['17:00:41', five],
    ['17:00:59.999', five],
    ['17:01:00', `off 2026-11-29T17:01:00Z`],
    ['05:00:00', `off 2026-11-29T05:00:00Z`],
  ])('an event at %s', (time, slot) => {
    expect(slotOf(ruleEvent(`2026-11-29T${time}Z`), daily)).toBe(slot);
    expect(slotOf({ job: 'stats', scheduledTime: `2026-11-29T${time}Z` }, daily)).toBe(slot);
    expect(slotOf({ job: 'stats', schedule: 0, scheduledTime: `2026-11-29T${time}Z` }, daily)).toBe(slot);
  });

  it('of the minute that has begun, where the next is as near', () => {
    expect(slotOf(ruleEvent('2026-11-29T16:59:59Z'), 'cron(* * * * ? *)')).toBe('2026-11-29T16:59:00Z');
  });

  it('in its zone, each local time once', () => {
    const schedule = { at: 'cron(30 1 * * ? *)', timeZone: 'America/New_York' };
    expect(slotOf({ job: 'stats', scheduledTime: '2026-11-29T06:30:00Z' }, schedule)).toBe(
      '2026-11-29T06:30:00Z',
    );
    expect(slotOf({ job: 'stats', scheduledTime: '2026-11-29T01:30:00Z' }, schedule)).toMatch(/^off /);
    expect(slotOf({ job: 'stats', scheduledTime: '2027-11-07T05:30:00Z' }, schedule)).toBe(
      '2027-11-07T05:30:00Z',
    );
    expect(slotOf({ job: 'stats', scheduledTime: '2027-11-07T06:30:00Z' }, schedule)).toMatch(/^off /);
  });

  it.each(['cron(0 17 * * ? *)', 'rate(1 minute)'])('within start and end: %s', (at) => {
    const schedule = { at, start: '2026-11-28T17:00:00Z', end: '2026-11-29T17:00:00Z' };
    const slot = (day: string, time = '17:00:00') => slotOf(ruleEvent(`2026-11-${day}T${time}Z`), schedule);
    expect(slot('27')).toMatch(/^off /);
    expect(slot('28')).toBe('2026-11-28T17:00:00Z');
    expect(slot('29')).toBe(five);
    expect(slot('29', '17:00:30')).not.toMatch(/^off /);
    expect(slot('29', '17:01:00')).toMatch(/^off /);
    expect(slot('30')).toMatch(/^off /);
  });

  it('or up to its window after it', () => {
    const schedule = { at: daily, flexibleMinutes: 15 };
    expect(slotOf(ruleEvent('2026-11-29T17:15:00Z'), schedule)).toBe(five);
    expect(slotOf(ruleEvent('2026-11-29T17:15:59Z'), schedule)).toBe(five);
    expect(slotOf(ruleEvent('2026-11-29T17:16:00Z'), schedule)).toBe('off 2026-11-29T17:16:00Z');
    expect(slotOf(ruleEvent('2026-11-29T16:59:00Z'), schedule)).toBe('off 2026-11-29T16:59:00Z');
  });

  describe('of a job with several', () => {
    const both = [daily, 'rate(7 minutes)'];
    it.each([
      ['17:00:41', undefined, five],
      ['17:07:13', undefined, '2026-11-29T17:07:13Z'],
      ['17:01:00', undefined, '2026-11-29T17:01:00Z'],
      ['17:00:41', 0, five],
      ['17:00:41', 1, '2026-11-29T17:00:41Z'],
      ['17:07:13', 0, 'off 2026-11-29T17:07:00Z'],
      ['17:07:13', 2, '2026-11-29T17:07:13Z'],
    ])('an event at %s of schedule %s', (time, schedule, slot) => {
      const event = ruleEvent(`2026-11-29T${time}Z`, schedule === undefined ? {} : { schedule });
      expect(slotOf(event, both)).toBe(slot);
      if (schedule === undefined) expect(slotOf(event, both.toReversed())).toBe(slot);
    });

    it('the nearest of two crons', () => {
      const crons = [{ at: daily, flexibleMinutes: 60 }, 'cron(30 17 * * ? *)'];
      expect(slotOf(ruleEvent('2026-11-29T17:30:10Z'), crons)).toBe('2026-11-29T17:30:00Z');
      expect(slotOf(ruleEvent('2026-11-29T17:29:10Z'), crons)).toBe(five);
    });
  });

  it('or of none, where there is none', () => {
    expect(slotOf(ruleEvent('2026-11-29T17:00:41Z'))).toBe('off 2026-11-29T17:00:00Z');
    expect(slotOf({ scheduledTime: five })).toBe(`off ${five}`);
  });

  it.each([
    '2026-02-30T12:00:00Z',
    '2',
    '1764417600',
    '0000-01-01T00:00:00Z',
    '1969-12-31T23:59:59Z',
    '2200-01-01T00:00:00Z',
    '2026-11-29',
    '2026-11-29T12:00:00',
    5,
    true,
    {},
    [noon],
  ])('or is refused, where it is no time: %j', (time) => {
    expect(refusal(ruleEvent(time))).toMatchObject({
      job: { name: 'stats' },
      message: expect.stringMatching(/^time is no time in ISO 8601/) as string,
    });
    expect(refusal({ job: 'stats', scheduledTime: time }).message).toMatch(/^scheduledTime is no time/);
  });

  it.each([-1, 0.5, '0', '__proto__', null, NaN, [0]])(
    'of a schedule by index, which %j is not',
    (schedule) => {
      expect(refusal({ job: 'stats', scheduledTime: noon, schedule })).toMatchObject({
        job: { name: 'stats' },
        message: expect.stringMatching(/^schedule is no index/) as string,
      });
    },
  );
});

describe('E2: an event is understood or refused', () => {
  const record = (requestPayload: unknown, more: object = {}) => ({
    version: '1.0',
    timestamp: '2026-11-29T12:03:11.000Z',
    requestContext: {
      requestId: 'first',
      functionArn: 'arn:aws:lambda:eu-central-1:123456789012:function:cronce-dev-stats:$LATEST',
      condition: 'RetriesExhausted',
      approximateInvokeCount: 3,
    },
    requestPayload,
    responseContext: { statusCode: 200, executedVersion: '$LATEST', functionError: 'Unhandled' },
    responsePayload: { errorMessage: 'secret' },
    ...more,
  });

  it('Lambda’s own record of one that failed is that event', () => {
    const of = (event: unknown) => slotOf(event, 'cron(0 12 * * ? *)');
    expect(of(record(ruleEvent(noon)))).toBe(noon);
    expect(of(record({ job: 'stats', scheduledTime: noon }))).toBe(noon);
    expect(of({ requestPayload: ruleEvent(noon), responsePayload: {} })).toBe(noon);
    expect(of({ requestPayload: ruleEvent(noon), requestContext: {} })).toBe(noon);
    const request = { cronce: { job: 'stats', trigger: 'manual', slot: 'manual:k', scheduledFor: noon } };
    expect(deliveryOf(record(request), around())).toMatchObject({ slot: 'manual:k', byHand: true });
  });

  it('of which a guess goes by the request id of the event that failed', () => {
    for (const payload of [null, {}, { params: 1 }])
      expect(deliveryOf(record(payload), around())).toMatchObject({ slotGuessed: true, deliveryId: 'first' });
    expect(deliveryOf(record({}, { requestContext: { requestId: 5 } }), around()).deliveryId).toBe('request');
  });

  const records = { Records: [{ messageId: 'm', body: '{"job":"stats","password":"hunter2"}' }] };
  const strange: unknown[] = [
    records,
    { Records: [{ EventSource: 'aws:sns', Sns: { Message: '{}' } }] },
    { Records: [] },
    'stats',
    '',
    '{}',
    0,
    5,
    true,
    false,
    [],
    [{}],
    [null],
    { source: 'serverless-plugin-warmup' },
    { warmer: true, concurrency: 3 },
    { scheduled_time: noon },
    { job: 'stats', scheduled_time: noon },
    { job: 'stats', scheduledTime: noon, extra: 1 },
    { scheduledtime: noon },
    { time: noon },
    { time: 5 },
    { schedule: 0 },
    { eventId: 'x' },
    { params: {}, extra: 1 },
    { source: 'aws.s3', 'detail-type': 'Object Created', time: noon, detail: {} },
    { source: 'aws.events', 'detail-type': 'Something Else', time: noon },
    { source: 'AWS.EVENTS', time: noon },
    { version: '2.0', routeKey: '$default', rawPath: '/', requestContext: { http: { method: 'GET' } } },
    { httpMethod: 'GET', path: '/', headers: {} },
    { requestPayload: {} },
    { requestContext: {}, responsePayload: {} },
    { ...record(ruleEvent(noon)), extra: 1 },
    record(ruleEvent(noon), { requestContext: { condition: 'Success' } }),
    record(record(ruleEvent(noon))),
    record(records),
    record('text'),
    JSON.parse('{"__proto__": {"job": "stats", "scheduledTime": "2026-11-29T12:00:00Z"}}'),
    JSON.parse('{"__proto__": {"cronce": {"job": "stats", "trigger": "manual", "slot": "manual:k"}}}'),
    { constructor: 1 },
    { cronce: {}, params: 1 },
    { cronce: 'text' },
    { cronce: [] },
  ];
  it.each(strange)('so this is refused: %j', (event) => {
    const error = refusal(event);
    expect(error.job?.name).toBe('stats');
    expect(error.message).toMatch(
      /^the event is not understood: (an object with "|a list|a (string|number|boolean)).*; understood are/,
    );
    expect(error.message).not.toMatch(/hunter2|secret|warmup/);
    expect(error.message.length).toBeLessThan(700);
    expect(refusal(event, around(undefined, null)).job).toBeNull();
  });

  it('says its keys, of many some', () => {
    const keys = Object.fromEntries(Array.from({ length: 30 }, (_, i) => [`${'k'.repeat(50)}${i}`, 1]));
    expect(refusal(keys).message).toMatch(/an object with ("k{40}", ){10}20 more; understood/);
    expect(refusal(records).message).toMatch(/an object with "Records"; understood/);
  });

  it('what every object has means nothing', () => {
    const polluted = Object.create({ cronce: { job: 'stats' }, job: 'other', scheduledTime: noon }) as object;
    expect(deliveryOf(polluted, around()).slotGuessed).toBe(true);
    for (const job of ['__proto__', 'constructor', 'toString'])
      expect(refusal({ job, scheduledTime: noon }).message).toMatch(/^no job is named /);
    const params = JSON.parse('{"__proto__":{"a":1}}') as object;
    expect(Object.keys(deliveryOf({ params }, around()).params as object)).toEqual(['__proto__']);
  });
});

describe('E7: a job of its own', () => {
  const others: unknown[] = [
    { job: 'other' },
    { job: 'other', scheduledTime: noon },
    ruleEvent(noon, { job: 'other' }),
    { cronce: { job: 'other', trigger: 'manual', slot: 'manual:k' } },
    { cronce: { job: 'other', trigger: 'sweep', slot: noon } },
    { requestPayload: { job: 'other', scheduledTime: noon }, responsePayload: {} },
  ];
  it.each(others)('no other job runs in its function: %j', (event) => {
    const error = refusal(event);
    expect(error.message).toBe(
      'the event is for job other, and this is the function of stats; send it to its own',
    );
    expect(error.job?.name).toBe('stats');
    expect(deliveryOf(event, around(undefined, null)).job.name).toBe('other');
  });

  it.each([
    [{ job: 'missing' }, 'no job is named "missing"; known: stats, other'],
    [{ job: 5 }, 'the event’s job is no text; known: stats, other'],
    [{ job: { password: 'hunter2' } }, 'the event’s job is no text; known: stats, other'],
    [
      { cronce: { job: 'missing', trigger: 'manual', slot: 'manual:k' } },
      'no job is named "missing"; known: stats, other',
    ],
    [{ cronce: { trigger: 'manual', slot: 'manual:k' } }, 'a run request names no job'],
    [{ cronce: null }, 'a run request names no job'],
  ])('or none that there is: %j', (event, message) => {
    expect(refusal(event)).toMatchObject({ message, job: { name: 'stats' } });
    expect(refusal(event, around(undefined, null))).toMatchObject({ message, job: null });
  });

  it('says so where neither the event nor the function names a job', () => {
    expect(refusal({}, around(undefined, null)).message).toBe('the event names no job; known: stats, other');
    expect(refusal({}, around(undefined, 'gone')).message).toBe(
      'no job is named "gone"; known: stats, other',
    );
  });
});

describe('E4, E7, G3: a run request', () => {
  const daily = 'cron(0 12 * * ? *)';
  const request = (fields: object, schedule: JobOptions['schedule'] = daily): Delivery =>
    deliveryOf({ cronce: { job: 'stats', trigger: 'manual', ...fields } }, around(schedule));
  const refused = (fields: object) => {
    const error = refusal({ cronce: { job: 'stats', trigger: 'manual', slot: 'manual:k', ...fields } });
    expect(error.job?.name).toBe('stats');
    return error.message;
  };

  it('names its slot by key, or the time of an occurrence', () => {
    expect(request({ slot: 'manual:k', params: { a: 1 }, requestedBy: 'ann' })).toMatchObject({
      slot: 'manual:k',
      trigger: 'manual',
      byHand: true,
      params: { a: 1 },
      requestedBy: 'ann',
      offSchedule: false,
      slotGuessed: false,
    });
    expect(request({ slot: noon })).toMatchObject({ slot: noon, byHand: true, offSchedule: false });
    expect(request({ slot: noon, trigger: 'sweep' })).toMatchObject({
      trigger: 'sweep',
      byHand: false,
      chain: 0,
    });
    expect(request({ slot: noon, trigger: 'sweep', chain: 3 })).toMatchObject({ chain: 3 });
  });

  it('says when it was asked for, the same on each delivery; without that it is a guess', () => {
    const scheduledFor = '2026-12-31T23:59:30.500Z';
    for (const trigger of ['manual', 'sweep'])
      expect(request({ slot: 'manual:close', trigger, scheduledFor })).toMatchObject({
        slot: 'manual:close',
        scheduledFor: new Date(scheduledFor),
        scheduledForGuessed: false,
      });
    expect(request({ slot: 'manual:close' })).toMatchObject({ scheduledFor: now, scheduledForGuessed: true });
    expect(request({ slot: noon, scheduledFor: '2026-11-29T13:00:00.000+01:00' })).toMatchObject({
      slot: noon,
      scheduledFor: new Date(noon),
      scheduledForGuessed: false,
    });
    expect(refused({ slot: noon, scheduledFor: '2026-11-29T12:00:01Z' })).toMatch(
      /another time than the slot’s/,
    );
  });

  it('by hand names an occurrence; the sweep’s are its own', () => {
    const slots = (slot: string, trigger: string, schedule?: JobOptions['schedule']) => {
      const delivery = request({ slot, trigger }, schedule);
      return [delivery.slot, delivery.offSchedule];
    };
    expect(slots('2026-11-29T12:00:41Z', 'manual')).toEqual([noon, false]);
    expect(slots('2026-11-29T12:01:00Z', 'manual')).toEqual(['2026-11-29T12:01:00Z', true]);
    expect(slots('2026-11-29T12:01:07.5Z', 'sweep')).toEqual(['2026-11-29T12:01:07Z', false]);
    expect(slots(noon, 'manual', [])).toEqual([noon, true]);
    const hourly = { at: 'rate(1 hour)', start: '2026-11-29T12:00:00Z', end: '2026-11-30T12:00:00Z' };
    expect(slots('2026-11-29T11:30:00Z', 'manual', hourly)).toEqual(['2026-11-29T11:30:00Z', true]);
    expect(slots('2026-11-29T12:30:07Z', 'manual', hourly)).toEqual(['2026-11-29T12:30:07Z', false]);
    expect(slots('2026-11-30T13:30:00Z', 'manual', hourly)).toEqual(['2026-11-30T13:30:00Z', true]);
  });

  it('cleans its params, so that they can be stored', () => {
    expect(request({ slot: 'manual:k', params: 'a\u0000\ud800' }).params).toBe('a\ufffd\ufffd');
  });

  it.each([
    [{ slot: undefined }, /^a run request without a slot; give manual:<key> or a time$/],
    [{ slot: null }, /without a slot/],
    [{ slot: 'yesterday' }, /^slot "yesterday" is neither manual:<key> nor a time$/],
    [{ slot: 'manual:' }, /neither manual:<key> nor a time/],
    [{ slot: '1083-09-12T07:57:15Z' }, /neither manual:<key> nor a time/],
    [{ slot: '0000-01-01T00:00:00Z' }, /neither manual:<key> nor a time/],
    [{ slot: '2200-01-01T00:00:00Z' }, /neither manual:<key> nor a time/],
    [{ slot: '2026-02-30T12:00:00Z' }, /neither manual:<key> nor a time/],
    [{ slot: `manual:${'x'.repeat(3_000)}` }, /^the slot is no text of 1 to 300 characters/],
    [{ slot: 'manual:a\u0000' }, /^the slot is no text/],
    [{ slot: 'manual:\ud800' }, /^the slot is no text/],
    [{ slot: 'manual:a\nb' }, /^the slot is no text/],
    [{ slot: '' }, /^the slot is no text/],
    [{ slot: 5 }, /^the slot is no text/],
    [{ slot: ['manual:k'] }, /^the slot is no text/],
    [{ requestedBy: 'a\u0000' }, /^requestedBy is no text of 1 to 200 characters/],
    [{ requestedBy: '\udc00' }, /^requestedBy is no text/],
    [{ requestedBy: 'a\u001b[31m' }, /^requestedBy is no text/],
    [{ requestedBy: 'x'.repeat(201) }, /^requestedBy is no text/],
    [{ requestedBy: '' }, /^requestedBy is no text/],
    [{ requestedBy: 5 }, /^requestedBy is no text/],
    [{ reason: 'x'.repeat(501) }, /^reason is no text of 1 to 500 characters/],
    [{ reason: 'a\u0000' }, /^reason is no text/],
    [{ reason: '' }, /^reason is no text/],
    [{ scheduledFor: 'now' }, /^scheduledFor is no time/],
    [{ scheduledFor: '0000-01-01T00:00:00Z' }, /^scheduledFor is no time/],
    [{ scheduledFor: 5 }, /^scheduledFor is no time/],
    [{ trigger: undefined }, /^the trigger of a run request is neither manual nor sweep$/],
    [{ trigger: 'rule' }, /neither manual nor sweep/],
    [{ trigger: 'Manual' }, /neither manual nor sweep/],
    [
      { requestedby: 'ann' },
      /^a run request has no "requestedby"; allowed: job, trigger, slot, scheduledFor, requestedBy, reason, params, chain$/,
    ],
    [{ force: true }, /has no "force"/],
    [{ chain: -1 }, /^the chain of a run request is no whole number from 0 on/],
    [{ chain: 1.5 }, /^the chain/],
    [{ chain: '1' }, /^the chain/],
    [JSON.parse('{"__proto__": 1}'), /has no "__proto__"/],
  ])('is refused: %j', (fields, message) => {
    expect(refused(fields as object)).toMatch(message);
  });

  it('may leave out what it need not say', () => {
    expect(request({ slot: 'manual:k', requestedBy: null, scheduledFor: null })).toMatchObject({
      requestedBy: null,
      params: null,
    });
    for (const slot of ['manual:k', `manual:${'x'.repeat(293)}`, 'manual: é ✓'])
      expect(request({ slot }).slot).toBe(slot);
  });

  const deep = (levels: number) => JSON.parse('['.repeat(levels) + ']'.repeat(levels)) as unknown;
  it.each([
    ['thousands of levels', deep(5_000), 'more than 12 levels'],
    ['13 levels', deep(13), 'more than 12 levels'],
    ['a long list', Array(1_001).fill(0), 'more than 1000 entries in one level'],
    ['a long text', 'x'.repeat(65_537), 'a text of more than 64 KB'],
    ['much', Array(20).fill('x'.repeat(12_000)), 'more than 200 KB'],
    ['much once it is escaped', Array(20).fill('\u0001'.repeat(2_000)), 'more than 200 KB'],
  ])('or event with too much in its params is refused: %s', (_, params, problem) => {
    const message = `params have ${problem}; store more elsewhere and pass its name`;
    expect(refused({ params })).toBe(message);
    for (const event of [{ params }, { job: 'stats', scheduledTime: noon, params }])
      expect(refusal(event)).toMatchObject({ message, job: { name: 'stats' } });
    const error = refusal({ requestPayload: { params }, responsePayload: {} });
    expect(error.message).toBe(message);
  });

  it('or event gives the job all the params that it was sent', () => {
    for (const params of [deep(12), Array(1_000).fill(0), 'x'.repeat(65_536), 0, false, '', []])
      expect(request({ slot: 'manual:k', params }).params).toEqual(params);
  });
});
