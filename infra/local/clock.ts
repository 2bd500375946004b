/**
 * Plays EventBridge and Lambda's asynchronous queue for a local set-up: each job's events, in the shapes in which the
 * deployed rules and schedules send them, at the times that their expressions mean.
 *
 * Like these it delivers at least once. One slot in five is delivered twice, by turns at once and a few seconds
 * later; and an invocation that failed is delivered again after one minute, then two, as often as its job allows.
 */
import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Job, JobSchedule } from '../../src/job.ts';
import { nextAfter } from '../../src/occurrences.ts';

export interface ClockOptions {
  readonly jobs: readonly Job[];
  /** Delivers one event to a job's function; true unless the invocation failed. */
  readonly deliver: (job: string, event: unknown, signal: AbortSignal) => Promise<boolean>;
  /** When a delivery did not reach the function at all. */
  readonly onTrouble: (job: string, error: unknown) => void;
}

export interface Time {
  now(): number;
  /** False if the signal has cut it short. */
  sleep(ms: number, signal?: AbortSignal): Promise<boolean>;
}

const realTime: Time = {
  now: () => Date.now(),
  sleep: async (ms, signal) => sleep(ms, true, signal && { signal }).catch(() => false),
};

export interface Clock {
  /** Starts nothing more, and waits for what has just been delivered, for a moment. */
  stop(): Promise<void>;
}

/** AWS fires a rate for the first time one interval after it was made. Nobody should have to wait for that here. */
const firstOfRateMs = 5_000;
const twiceEvery = 5;
const laterMs = 3_000;
const retryAfterMs = [60_000, 120_000];
/** What fell due longer ago, while the machine slept, is not made up for. */
const latenessMs = 60_000;
/** Timers take no more than 24 days, and a clock may be set. */
const longestNapMs = 60_000;
const finishWithinMs = 2_000;

export function startClock(options: ClockOptions, time = realTime): Clock {
  const clock = new LocalClock(options, time);
  return { stop: async () => clock.stop() };
}

class LocalClock {
  readonly #options: ClockOptions;
  readonly #time: Time;
  readonly #stopped = new AbortController();
  readonly #cut = new AbortController();
  readonly #underWay = new Set<Promise<void>>();
  #slots = 0;

  constructor(options: ClockOptions, time: Time) {
    this.#options = options;
    this.#time = time;
    // Every delivery under way listens, and every one that waits.
    setMaxListeners(0, this.#stopped.signal, this.#cut.signal);
    const startedAt = time.now();
    for (const job of options.jobs)
      job.schedules.forEach((schedule, index) => {
        if (job.enabled && schedule.enabled) this.#keep(this.#follow(job, schedule, index, startedAt));
      });
  }

  async stop(): Promise<void> {
    this.#stopped.abort();
    const finished = Promise.all(this.#underWay);
    await Promise.race([finished, this.#time.sleep(finishWithinMs, this.#cut.signal)]);
    this.#cut.abort();
    await finished;
  }

  async #follow(job: Job, given: JobSchedule, index: number, startedAt: number): Promise<void> {
    const { schedule, timeZone, via, start, end } = given;
    const second = Math.floor(startedAt / 1_000) * 1_000;
    const anchor = new Date(Math.max(second + firstOfRateMs, start?.getTime() ?? 0));
    let last = Math.max(startedAt, (start?.getTime() ?? 0) - 1);
    for (;;) {
      const due = nextAfter(
        schedule,
        new Date(Math.max(last, this.#time.now() - latenessMs)),
        timeZone,
        anchor,
      );
      if (due === undefined || (end !== null && due > end) || !(await this.#reached(due))) return;
      last = due.getTime();
      this.#fire(job, eventOf(job.name, index, due, via));
    }
  }

  /** False once the clock is stopped. */
  async #reached(due: Date): Promise<boolean> {
    const leftMs = () => due.getTime() - this.#time.now();
    while (leftMs() > 0) if (!(await this.#nap(Math.min(leftMs(), longestNapMs)))) return false;
    return !this.#stopped.signal.aborted;
  }

  #fire(job: Job, event: unknown): void {
    const nth = this.#slots++;
    this.#keep(this.#deliverUntilTaken(job, event));
    if (nth % twiceEvery !== 0) return;
    const afterMs = (nth / twiceEvery) % 2 === 0 ? 0 : laterMs;
    this.#keep(this.#nap(afterMs).then(async (on) => (on ? this.#deliverUntilTaken(job, event) : undefined)));
  }

  async #deliverUntilTaken(job: Job, event: unknown): Promise<void> {
    for (const waitMs of [0, ...retryAfterMs.slice(0, job.retries)]) {
      if (waitMs > 0 && !(await this.#nap(waitMs))) return;
      if (await this.#deliver(job, event)) return;
    }
  }

  async #deliver({ name }: Job, event: unknown): Promise<boolean> {
    return this.#options.deliver(name, event, this.#cut.signal).catch((error: unknown) => {
      if (!this.#stopped.signal.aborted) this.#options.onTrouble(name, error);
      return false;
    });
  }

  async #nap(ms: number): Promise<boolean> {
    return this.#time.sleep(ms, this.#stopped.signal);
  }

  #keep(activity: Promise<void>): void {
    const kept: Promise<void> = activity.finally(() => this.#underWay.delete(kept));
    this.#underWay.add(kept);
  }
}

/** What a rule's transformer makes of its event, or a schedule's input with its keyword filled in. */
export function eventOf(job: string, schedule: number, due: Date, via: JobSchedule['via']) {
  const event = { job, schedule, scheduledTime: due.toISOString().replace('.000Z', 'Z') };
  return via === 'rule' ? { ...event, eventId: randomUUID() } : event;
}
