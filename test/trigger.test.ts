import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { defineJob, defineJobs } from '../src/job.ts';
import { deliveryOf, TriggerError } from '../src/trigger.ts';

interface Case {
  readonly name: string;
  readonly schedule: string;
  readonly event: unknown;
  readonly slot: string;
}

const cases = readFileSync(new URL('./cases/events.jsonl', import.meta.url), 'utf8')
  .split('\n')
  .filter(Boolean)
  .map((line) => JSON.parse(line) as Case);

const now = new Date('2026-11-30T08:15:42.123Z');
const around = (schedule?: string, ownJob: string | null = 'stats') => {
  const stats = defineJob({
    name: 'stats',
    work: async () => 1,
    ...(schedule === undefined ? {} : { schedule }),
  });
  return { registry: defineJobs([stats]), ownJob, deliveryId: 'request', now };
};

describe('the slot of an event', () => {
  it.each(cases)('$name', ({ schedule, event, slot }) => {
    const delivery = deliveryOf(event, around(schedule));
    expect(delivery.slotGuessed).toBe(slot === 'guessed');
    expect(delivery.slot).toBe(slot === 'guessed' ? '2026-11-30T08:15:00Z' : slot);
    expect(delivery.scheduledFor.toISOString()).toBe(delivery.slot.replace('Z', '.000Z'));
    expect(delivery.byHand).toBe(false);
  });

  it.each([2, true, [], { time: 5 }, { time: '2026-02-30T12:00:00Z' }, { scheduledTime: '2' }, 'text'])(
    'is guessed where an event names no time: %j',
    (event) => {
      expect(deliveryOf(event, around()).slotGuessed).toBe(true);
    },
  );

  it('is read in any offset and fraction of ISO 8601', () => {
    const event = { scheduledTime: '2026-11-29T13:00:59.999+01:00' };
    expect(deliveryOf(event, around('cron(0 12 * * ? *)')).slot).toBe('2026-11-29T12:00:00Z');
    expect(deliveryOf(event, around('rate(1 minute)')).slot).toBe('2026-11-29T12:00:59Z');
  });
});

describe('a run request', () => {
  const request = (fields: object) =>
    deliveryOf({ cronce: { job: 'stats', trigger: 'manual', ...fields } }, around());

  it('names its slot by key, or the time of an occurrence', () => {
    expect(request({ slot: 'manual:k', params: { a: 1 }, requestedBy: 'ann' })).toMatchObject({
      slot: 'manual:k',
      trigger: 'manual',
      byHand: true,
      params: { a: 1 },
      requestedBy: 'ann',
      scheduledFor: now,
    });
    expect(request({ slot: '2026-11-29T12:00:00Z' })).toMatchObject({
      slot: '2026-11-29T12:00:00Z',
      byHand: true,
    });
    expect(request({ slot: '2026-11-29T12:00:00Z', trigger: 'sweep' })).toMatchObject({
      trigger: 'sweep',
      byHand: false,
    });
  });

  it('cleans its params, so that they can be stored', () => {
    expect(request({ slot: 'manual:k', params: 'a\u0000\ud800' }).params).toBe('a\ufffd\ufffd');
  });

  it.each([
    [{}, /without a slot/],
    [{ slot: 'yesterday' }, /neither manual:<key> nor a time/],
    [{ slot: 'manual:k', job: 'other' }, /no job is named "other"; known: stats/],
  ])('is refused: %j', (fields, message) => {
    expect(() => request(fields)).toThrow(TriggerError);
    expect(() => request(fields)).toThrow(message);
  });
});

it('says so where neither the event nor the function names a job', () => {
  expect(() => deliveryOf({}, around(undefined, null))).toThrow(/names no job; known: stats/);
});
