/**
 * Plays EventBridge and Lambda's asynchronous queue for a local set-up: each job's events, in the shapes in which the
 * deployed rules and schedules send them, at the times that their expressions mean.
 *
 * Like these it delivers at least once: a fate says when, and how often. An invocation that failed is delivered again
 * after one minute, then two, as often as its job allows. And like these it does not sleep with the machine: what fell
 * due meanwhile is delivered on waking, each event with its own slot, a schedule's in order.
 */
import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Job, JobSchedule } from '../../src/job.ts';
import { nextAfter, occurrencesBetween } from '../../src/calendar/occurrences.ts';
import { sweepName } from '../../src/sweep/sweep.ts';
import { retryAfterMs } from './retries.ts';

export interface ClockOptions {
  readonly jobs: readonly Job[];
  /** Delivers one event to a job's function; true unless the invocation failed. */
  readonly deliver: (job: string, event: unknown, signal: AbortSignal) => Promise<boolean>;
  /** When a delivery did not reach the function at all. */
  readonly onTrouble: (job: string, error: unknown) => void;
  /** When the machine has slept, and so many events fell due meanwhile. */
  readonly onCatchUp?: (sleptMs: number, events: number) => void;
  /** By default one slot in five is delivered twice, by turns at once and a few seconds later. */
  readonly fate?: Fate;
  /** The delays of retries are divided by this; default 1. */
  readonly speed?: number;
}

/** After how many ms each delivery of an event comes; none: it is lost. */
export type Fate = (due: Due) => readonly number[];

/** An event that falls due. */
export interface Due {
  readonly job: Job;
  readonly schedule: number;
  /** The how-manyth of its schedule that falls due since the start, from 0. */
  readonly nth: number;
  readonly slot: Date;
  /** How long until the next slot of its schedule, ms. */
  readonly untilNextMs: number;
  readonly event: unknown;
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
/** For so long EventBridge tries to deliver an event; what fell due before, while the machine slept, is gone. */
const keptForMs = 24 * 3_600_000;
/** So many of one schedule, the latest, so that a night's sleep doesn't keep a laptop busy all morning. */
const keptAtMost = 500;
/** Timers stand still while the machine sleeps, so this is also how soon its waking is noticed. */
const longestNapMs = 5_000;
/** Only sleep makes a nap so much longer than was asked for, by the clock on the wall. */
const oversleptMs = 10_000;
const finishWithinMs = 2_000;

export function startClock(options: ClockOptions, time = realTime): Clock {
  const clock = new LocalClock(options, time);
  return { stop: async () => clock.stop() };
}

class LocalClock {
  readonly #options: ClockOptions;
  readonly #time: Time;
  readonly #fate: Fate;
  readonly #timetables: readonly Timetable[];
  readonly #stopped = new AbortController();
  readonly #cut = new AbortController();
  readonly #underWay = new Set<Promise<void>>();

  constructor(options: ClockOptions, time: Time) {
    this.#options = options;
    this.#time = time;
    this.#fate = options.fate ?? someTwice();
    this.#timetables = timetablesOf(options.jobs, time.now());
    // Every delivery under way listens, and every one that waits.
    setMaxListeners(0, this.#stopped.signal, this.#cut.signal);
    this.#keep(this.#run());
  }

  async stop(): Promise<void> {
    this.#stopped.abort();
    const finished = Promise.all(this.#underWay);
    await Promise.race([finished, this.#time.sleep(finishWithinMs, this.#cut.signal)]);
    this.#cut.abort();
    await finished;
  }

  async #run(): Promise<void> {
    for (;;) {
      const before = this.#time.now();
      const napMs = this.#untilNext(before);
      if (!(await this.#nap(napMs))) return;
      const now = this.#time.now();
      const sleptMs = now - before - napMs;
      if (sleptMs > oversleptMs) this.#catchUp(now, sleptMs);
      else for (const timetable of this.#timetables) this.#fire(timetable, now);
    }
  }

  #untilNext(now: number): number {
    const next = Math.min(...this.#timetables.map(({ next }) => next));
    return Math.max(0, Math.min(next - now, longestNapMs));
  }

  #fire(timetable: Timetable, now: number): void {
    for (const due of timetable.take(now))
      for (const delayMs of this.#fate(due))
        this.#keep(this.#deliverAt(now + delayMs, due, timetable.caughtUp));
  }

  async #deliverAt(at: number, due: Due, after: Promise<void>): Promise<void> {
    await after;
    if (!(await this.#reached(at))) return;
    if (!(await this.#deliver(due))) await this.#retry(due);
  }

  async #retry(due: Due): Promise<void> {
    for (const afterMs of retryAfterMs.slice(0, due.job.retries)) {
      if (!(await this.#reached(this.#time.now() + afterMs / (this.#options.speed ?? 1)))) return;
      if (await this.#deliver(due)) return;
    }
  }

  async #deliver({ job: { name }, event }: Due): Promise<boolean> {
    return this.#options.deliver(name, event, this.#cut.signal).catch((error: unknown) => {
      if (!this.#stopped.signal.aborted) this.#options.onTrouble(name, error);
      return false;
    });
  }

  /** A sweep waits for all others too: it would take for missed whatever has not had its turn. */
  #catchUp(now: number, sleptMs: number): void {
    const late = this.#timetables.map((timetable) => ({ timetable, dues: timetable.take(now) }));
    const events = late.reduce((sum, { dues }) => sum + dues.length, 0);
    if (events > 0) this.#options.onCatchUp?.(sleptMs, events);
    for (const { timetable, dues } of late) {
      const first = isSweep(timetable) ? this.#timetables : [timetable];
      const done = Promise.all(first.map(async ({ caughtUp }) => caughtUp));
      timetable.caughtUp = this.#deliverInOrder(dues, done);
      this.#keep(timetable.caughtUp);
    }
  }

  /** Each once the one before has been answered: all at once, the first would have the others skipped as `held`. */
  async #deliverInOrder(dues: readonly Due[], after: Promise<unknown>): Promise<void> {
    await after;
    for (const due of dues) {
      if (this.#stopped.signal.aborted) return;
      if (!(await this.#deliver(due))) this.#keep(this.#retry(due));
    }
  }

  /** By the clock on the wall, since others than this machine count the time. False once the clock is stopped. */
  async #reached(at: number): Promise<boolean> {
    const leftMs = () => at - this.#time.now();
    while (leftMs() > 0) if (!(await this.#nap(Math.min(leftMs(), longestNapMs)))) return false;
    return !this.#stopped.signal.aborted;
  }

  async #nap(ms: number): Promise<boolean> {
    return (await this.#time.sleep(ms, this.#stopped.signal)) && !this.#stopped.signal.aborted;
  }

  #keep(activity: Promise<void>): void {
    const kept: Promise<void> = activity.finally(() => this.#underWay.delete(kept));
    this.#underWay.add(kept);
  }
}

/** One slot in five, by turns at once and a few seconds later. */
function someTwice(): Fate {
  let slots = 0;
  return () => {
    const nth = slots++;
    if (nth % twiceEvery !== 0) return [0];
    return [0, (nth / twiceEvery) % 2 === 0 ? 0 : laterMs];
  };
}

// --- what is due --------------------------------------------------------------------------------

/** Those of the sweep come last. */
function timetablesOf(jobs: readonly Job[], startedAt: number): Timetable[] {
  return jobs
    .filter(({ enabled }) => enabled)
    .flatMap((job) => job.schedules.map((given, index) => ({ job, given, index })))
    .filter(({ given }) => given.enabled)
    .map(({ job, given, index }) => new Timetable(job, given, index, startedAt))
    .toSorted((one, other) => Number(isSweep(one)) - Number(isSweep(other)));
}

function isSweep({ job }: Timetable): boolean {
  return job.name === sweepName;
}

/** One schedule of a job, and how far it has come. */
class Timetable {
  readonly job: Job;
  /** Epoch milliseconds of the next slot; Infinity where there is none. */
  next: number;
  /** Settles once what fell due during a sleep has been delivered. */
  caughtUp = Promise.resolve();
  readonly #given: JobSchedule;
  readonly #index: number;
  readonly #anchor: Date;
  #last: number;
  #nth = 0;

  constructor(job: Job, given: JobSchedule, index: number, startedAt: number) {
    const startMs = given.start?.getTime() ?? 0;
    this.job = job;
    this.#given = given;
    this.#index = index;
    this.#anchor = new Date(Math.max(Math.floor(startedAt / 1_000) * 1_000 + firstOfRateMs, startMs));
    this.#last = Math.max(startedAt, startMs - 1);
    this.next = this.#nextAfter(this.#last);
  }

  /** What has fallen due since it was last asked, in order; the latest alone, where that is too much. */
  take(now: number): Due[] {
    if (this.next > now) return [];
    const { schedule, timeZone, end } = this.#given;
    const after = new Date(Math.max(this.#last, now - keptForMs));
    const until = new Date(Math.min(now, end?.getTime() ?? Infinity));
    const slots = [...occurrencesBetween(schedule, after, until, timeZone, this.#anchor)].slice(-keptAtMost);
    this.#last = now;
    this.next = this.#nextAfter(now);
    return slots.map((slot, index) => this.#due(slot, slots[index + 1]?.getTime() ?? this.next));
  }

  #due(slot: Date, next: number): Due {
    const { job } = this;
    const event = eventOf(job.name, this.#index, slot, this.#given.via);
    return { job, schedule: this.#index, nth: this.#nth++, slot, untilNextMs: next - slot.getTime(), event };
  }

  #nextAfter(after: number): number {
    const { schedule, timeZone, end } = this.#given;
    const next = nextAfter(schedule, new Date(after), timeZone, this.#anchor);
    return next === undefined || (end !== null && next > end) ? Infinity : next.getTime();
  }
}

/** What a rule's transformer makes of its event, or a schedule's input with its keyword filled in. */
export function eventOf(job: string, schedule: number, due: Date, via: JobSchedule['via']) {
  const event = { job, schedule, scheduledTime: due.toISOString().replace('.000Z', 'Z') };
  return via === 'rule' ? { ...event, eventId: randomUUID() } : event;
}
