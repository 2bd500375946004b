import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { startClock, type Clock, type ClockOptions, type Time } from '../../../infra/local/clock.ts';
import { declareJob, defineJob, type JobOptions } from '../../../src/job.ts';
import { sweepName } from '../../../src/sweep/sweep.ts';

interface Delivered {
  readonly at: string;
  readonly event: {
    readonly job: string;
    readonly schedule: number;
    readonly scheduledTime: string;
    readonly eventId?: string;
  };
}

let clock: Clock;
let delivered: Delivered[];
let answers: boolean[];
/** How long a delivery takes to be answered. */
let answerMs: number;

beforeEach(() => {
  vi.useFakeTimers({ now: new Date('2026-11-29T12:00:30.400Z') });
  delivered = [];
  answers = [];
  answerMs = 0;
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

function start(options: Partial<JobOptions>, more: Partial<ClockOptions> = {}): void {
  const job = defineJob({ name: 'tidy-up', work: async () => null, ...options });
  const deliver = async (_: string, event: unknown) => {
    delivered.push({ at: new Date().toISOString(), event: event as Delivered['event'] });
    const answer = answers.shift() ?? true;
    if (answerMs > 0) await time.sleep(answerMs);
    return answer;
  };
  clock = startClock({ jobs: [job], deliver, onTrouble: () => undefined, ...more }, time);
}

/** The clock on the wall goes on, timers do not; and then a moment, in which the waking is noticed. */
async function sleepOver(ms: number): Promise<void> {
  vi.setSystemTime(Date.now() + ms);
  await vi.advanceTimersByTimeAsync(6_000);
}

const slots = () => delivered.map(({ event }) => event.scheduledTime);
const times = () => delivered.map(({ at }) => at.slice(11, 19));

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
  await vi.advanceTimersByTimeAsync(3_600_000);
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

it('divides the delays of retries by the speed, and nothing else', async () => {
  answers = [false, false, true];
  start({ schedule: 'cron(* * * * ? *)' }, { speed: 30, fate: () => [0] });
  await vi.advanceTimersByTimeAsync(2 * 60_000);
  expect(times()).toEqual(['12:01:00', '12:01:02', '12:01:06', '12:02:00']);
});

it('delivers each event as often, and as late, as its fate is', async () => {
  const fates = [[90_000], [], [0, 10_000]];
  start({ schedule: 'cron(* * * * ? *)' }, { fate: ({ nth }) => fates[nth] ?? [0] });
  await vi.advanceTimersByTimeAsync(4 * 60_000);
  expect(delivered.map(({ at, event }) => [event.scheduledTime.slice(11, 16), at.slice(11, 19)])).toEqual([
    ['12:01', '12:02:30'],
    ['12:03', '12:03:00'],
    ['12:03', '12:03:10'],
    ['12:04', '12:04:00'],
  ]);
});

it('delivers on waking what fell due during a sleep, in order, and each when the one before has been answered', async () => {
  const onCatchUp = vi.fn();
  answerMs = 1_000;
  start({ schedule: 'cron(* * * * ? *)' }, { onCatchUp, fate: () => [0] });
  await vi.advanceTimersByTimeAsync(10_000);
  await sleepOver(5 * 60_000);
  await vi.advanceTimersByTimeAsync(20_000);
  expect(slots().map((slot) => slot.slice(11, 16))).toEqual([
    '12:01',
    '12:02',
    '12:03',
    '12:04',
    '12:05',
    '12:06',
  ]);
  const caughtUpAt = delivered.slice(0, 5).map(({ at }) => Date.parse(at));
  expect(caughtUpAt.map((at) => at - (caughtUpAt[0] ?? 0))).toEqual([0, 1_000, 2_000, 3_000, 4_000]);
  expect(times()[5]).toBe('12:06:00');
  expect(onCatchUp.mock.calls).toEqual([[300_000, 5]]);
});

it('keeps what falls due after waking behind what it still has to catch up on', async () => {
  answerMs = 20_000;
  start({ schedule: 'cron(* * * * ? *)' }, { fate: () => [0] });
  await sleepOver(5 * 60_000);
  await vi.advanceTimersByTimeAsync(5 * 60_000);
  expect(slots()).toEqual(slots().toSorted());
  expect(new Set(slots()).size).toBe(10);
});

it('tries again what failed after a sleep, and does not hold up the others for it', async () => {
  answers = [false];
  start({ schedule: 'cron(* * * * ? *)' }, { fate: () => [0] });
  await sleepOver(2 * 60_000);
  await vi.advanceTimersByTimeAsync(61_000);
  expect(slots().map((slot) => slot.slice(11, 16))).toEqual(['12:01', '12:02', '12:03', '12:01']);
});

it('retries by the clock on the wall, which a sleep does not stop', async () => {
  answers = [false];
  start({ schedule: { at: 'cron(1 12 * * ? *)', timeZone: 'UTC' } }, { fate: () => [0] });
  await vi.advanceTimersByTimeAsync(31_000);
  await sleepOver(3_600_000);
  expect(slots()).toEqual(['2026-11-29T12:01:00Z', '2026-11-29T12:01:00Z']);
});

it('catches up on 24 hours, and on the latest 500 slots of a schedule', async () => {
  start({ schedule: ['cron(* * * * ? *)', 'cron(0 18 * * ? *)'] });
  await sleepOver(3 * 24 * 3_600_000);
  const of = (schedule: number) =>
    slots().filter((_, index) => delivered[index]?.event.schedule === schedule);
  expect(of(0)).toHaveLength(500);
  expect(of(0).at(-1)).toBe('2026-12-02T12:00:00Z');
  expect(of(1).map((slot) => slot.slice(5, 16))).toEqual(['12-01T18:00']);
});

it('takes a moment of dawdling for no sleep', async () => {
  const onCatchUp = vi.fn();
  start({ schedule: 'cron(* * * * ? *)' }, { onCatchUp });
  await vi.advanceTimersByTimeAsync(28_000);
  await sleepOver(8_000);
  expect(slots()).toEqual(['2026-11-29T12:01:00Z', '2026-11-29T12:01:00Z']);
  expect(onCatchUp).not.toHaveBeenCalled();
});

it('lets a sweep wait until the others have caught up, since it would take their slots for missed', async () => {
  const jobs = [sweepName, 'tidy-up'].map((name) =>
    declareJob({ name, schedule: 'cron(* * * * ? *)', work: async () => null }),
  );
  answerMs = 1_000;
  start({}, { jobs });
  await sleepOver(3 * 60_000);
  await vi.advanceTimersByTimeAsync(10_000);
  expect(delivered.map(({ event }) => event.job)).toEqual([
    ...Array<string>(3).fill('tidy-up'),
    ...Array<string>(3).fill(sweepName),
  ]);
});

it('stops in the middle of catching up', async () => {
  answerMs = 1_000;
  start({ schedule: 'cron(* * * * ? *)' });
  await sleepOver(3_600_000);
  const until = delivered.length;
  const stopped = clock.stop();
  await vi.advanceTimersByTimeAsync(60_000);
  await stopped;
  expect([until > 0, delivered.length]).toEqual([true, until]);
});
