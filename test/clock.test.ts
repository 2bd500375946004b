import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { startClock, type Clock, type Time } from '../infra/local/clock.ts';
import { defineJob, type JobOptions } from '../src/job.ts';

interface Delivered {
  readonly at: string;
  readonly event: { readonly scheduledTime: string; readonly eventId?: string };
}

let clock: Clock;
let delivered: Delivered[];
let answers: boolean[];

beforeEach(() => {
  vi.useFakeTimers({ now: new Date('2026-11-29T12:00:30.400Z') });
  delivered = [];
  answers = [];
});
afterEach(async () => {
  const stopped = clock.stop();
  await vi.advanceTimersByTimeAsync(5_000);
  await stopped;
  vi.useRealTimers();
});

/** By the timers that vitest replaces, which are the global ones alone. */
const time: Time = {
  now: () => Date.now(),
  sleep: async (ms, signal) =>
    new Promise((resolve) => {
      setTimeout(() => resolve(true), ms);
      signal?.addEventListener('abort', () => resolve(false));
    }),
};

function start(options: Partial<JobOptions>): void {
  const job = defineJob({ name: 'tidy-up', work: async () => null, ...options });
  const deliver = async (_: string, event: unknown) => {
    delivered.push({ at: new Date().toISOString(), event: event as Delivered['event'] });
    return answers.shift() ?? true;
  };
  clock = startClock({ jobs: [job], deliver, onTrouble: () => undefined }, time);
}

const slots = () => delivered.map(({ event }) => event.scheduledTime);

it('delivers a rate a few seconds after the start and then at its interval, the first slot twice', async () => {
  start({ schedule: 'rate(5 minutes)' });
  await vi.advanceTimersByTimeAsync(11 * 60_000);
  expect(slots()).toEqual([
    '2026-11-29T12:00:35Z',
    '2026-11-29T12:00:35Z',
    '2026-11-29T12:05:35Z',
    '2026-11-29T12:10:35Z',
  ]);
  expect(delivered[0]?.event).toEqual({
    job: 'tidy-up',
    schedule: 0,
    scheduledTime: '2026-11-29T12:00:35Z',
    eventId: expect.stringMatching(/^[0-9a-f-]{36}$/) as unknown,
  });
  expect(delivered[1]?.event.eventId).toBe(delivered[0]?.event.eventId);
});

it('delivers one slot in five twice, by turns at once and a few seconds later', async () => {
  start({ schedule: 'cron(* * * * ? *)' });
  await vi.advanceTimersByTimeAsync(10 * 60_000);
  const again = delivered.filter(({ event }, index) => slots().indexOf(event.scheduledTime) < index);
  expect(again.map(({ at }) => at.slice(11, 19))).toEqual(['12:01:00', '12:06:03']);
});

it('reckons in the zone of the schedule, in the shape of EventBridge Scheduler', async () => {
  start({ schedule: { at: 'cron(15 13 * * ? *)', timeZone: 'Europe/Berlin' } });
  await vi.advanceTimersByTimeAsync(24 * 3_600_000);
  expect(delivered[0]).toEqual({
    at: '2026-11-29T12:15:00.000Z',
    event: { job: 'tidy-up', schedule: 0, scheduledTime: '2026-11-29T12:15:00Z' },
  });
});

it('delivers a failed invocation again after one minute, then two, and no more than the job allows', async () => {
  answers = [false, true, false, false, true];
  start({ schedule: { at: 'cron(15 12 * * ? *)', timeZone: 'UTC' }, retries: 2 });
  await vi.advanceTimersByTimeAsync(3_600_000);
  expect(delivered.map(({ at }) => at.slice(11, 19))).toEqual([
    '12:15:00',
    '12:15:00',
    '12:16:00',
    '12:18:00',
  ]);
});

it('keeps to start and end, and delivers nothing that is disabled', async () => {
  const start_ = '2026-11-29T13:00:00Z';
  const end = '2026-11-29T13:02:30Z';
  start({
    schedule: [
      { at: 'rate(1 minute)', start: start_, end },
      { at: 'rate(1 minute)', enabled: false },
    ],
  });
  await vi.advanceTimersByTimeAsync(3 * 3_600_000);
  expect([...new Set(slots())]).toEqual([
    '2026-11-29T13:00:00Z',
    '2026-11-29T13:01:00Z',
    '2026-11-29T13:02:00Z',
  ]);
});

it('starts nothing more once it is stopped', async () => {
  start({ schedule: 'rate(1 minute)' });
  const stopped = clock.stop();
  await vi.advanceTimersByTimeAsync(10 * 60_000);
  await stopped;
  expect(delivered).toEqual([]);
});
