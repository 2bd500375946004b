import { coordinate } from '../../src/coordinate.ts';
import { defineJobs, type Job, type WorkContext } from '../../src/job.ts';
import { occurrencesBetween } from '../../src/occurrences.ts';
import { OutcomeUnknown } from '../../src/outcome.ts';
import { Session } from '../../src/postgres/session.ts';
import { deservesRetry } from '../../src/run.ts';
import { sweepJob } from '../../src/sweep.ts';
import { deliveryOf, slotName, type RunRequest } from '../../src/trigger.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import type { TestDatabase } from '../support/database.ts';
import { startProxy } from '../support/proxy.ts';
import { randomFrom } from '../support/random.ts';
import { deployments } from './jobs.ts';

const second = 1_000;
const minute = 60 * second;
const hour = 60 * minute;
const day = 24 * hour;

/** How often things go wrong; shares of all deliveries. */
const odds = { twice: 0.02, late: 0.01, never: 0.0025, death: 0.0025, failure: 0.03 } as const;
/** Each costs the real database some tenths of a second. */
const sweepEveryMs = 2 * hour;
/** Lambda's waits before its first and second retry of an asynchronous invocation. */
const retryAfterMs = [minute, 2 * minute] as const;

export interface Plan {
  readonly start: Date;
  readonly days: number;
  readonly seed: number;
}

/** What happens when, in parts of the whole, so that a short simulation has all of it too. */
export function calendarOf({ start, days }: Plan) {
  const at = (share: number) => new Date(start.getTime() + Math.round(share * days * 24) * hour);
  return {
    outage: { from: at(0.3), until: new Date(at(0.3).getTime() + Math.min(day, (days * day) / 5)) },
    pause: { from: at(0.12), until: at(0.2) },
    redeploy: at(0.55),
    end: at(1),
  };
}

interface Happening {
  readonly at: number;
  readonly order: number;
  readonly happen: () => Promise<void>;
}

/** A slot that EventBridge owed, and of which schedule: reckoned from what was deployed when, not by the sweep. */
export interface Due {
  readonly job: string;
  readonly slot: string;
}

/**
 * Ninety days of EventBridge and Lambda in virtual time: a queue of happenings, one at a time. Work that lasts lets the
 * queue go on inside it, so that deliveries overlap; what comes out depends on the seed alone.
 */
export class World {
  readonly due: Due[] = [];
  readonly worked = new Map<string, number>();
  readonly caughtUpInOnePass = new Map<string, number>();
  readonly #plan: Plan;
  readonly #db: TestDatabase;
  readonly #random: () => number;
  readonly #queue: Happening[] = [];
  readonly #calendar: ReturnType<typeof calendarOf>;
  readonly #delivered = new Set<string>();
  readonly #versions: readonly (readonly Job[])[];
  #jobs: readonly Job[] = [];
  #now: number;
  #order = 0;
  #sweeps = 0;
  #doomed: (() => Promise<void>) | null = null;

  constructor(plan: Plan, db: TestDatabase) {
    this.#plan = plan;
    this.#db = db;
    this.#random = randomFrom(plan.seed);
    this.#calendar = calendarOf(plan);
    this.#now = plan.start.getTime();
    this.#versions = deployments((job, lastsMs) => async (context) => this.#work(job, lastsMs, context));
  }

  async run(onProgress: (share: number) => void): Promise<void> {
    const { start } = this.#plan;
    const { pause, redeploy, end } = this.#calendar;
    this.#deploy(0, start, redeploy);
    this.#at(pause.from, async () =>
      this.#sql(`SELECT cronce.pause_job('paused-a-while', 'ann', 'a look', $1)`),
    );
    this.#at(pause.until, async () => this.#sql(`SELECT cronce.resume_job('paused-a-while', 'ann', $1)`));
    this.#at(redeploy, async () => this.#sweep());
    this.#deploy(1, redeploy, end);
    // At the end all schedules are switched off, once the last slots are accounted for; retries still come.
    this.#at(new Date(end.getTime() + 9 * minute), async () => this.#sweep());
    this.#at(new Date(end.getTime() + 10 * minute), async () => {
      this.#jobs = this.#jobs.map((job) => ({ ...job, enabled: false }));
      await this.#sweep();
    });
    for (let at = start.getTime() + sweepEveryMs; at <= end.getTime() + 6 * hour; at += sweepEveryMs)
      this.#at(new Date(at + 30 * second), async () => this.#sweep());
    const whole = end.getTime() - start.getTime();
    await this.#until(end.getTime() + 7 * hour, (now) =>
      onProgress(Math.min(1, (now - start.getTime()) / whole)),
    );
  }

  /** From a deployment on, its jobs' schedules are delivered; a sweep follows it, and knows them from then on. */
  #deploy(version: number, from: Date, until: Date): void {
    const jobs = this.#versions[version] ?? [];
    this.#at(from, async () => {
      this.#jobs = jobs;
      await this.#sweep();
    });
    for (const job of jobs.filter(({ enabled }) => enabled))
      job.schedules.forEach((given, index) => {
        const anchor = job.name === 'expire-rate' ? this.#plan.start : from;
        for (const due of occurrencesBetween(given.schedule, from, until, given.timeZone, anchor))
          this.#owe(job, index, due);
      });
  }

  #owe(job: Job, index: number, due: Date): void {
    this.due.push({ job: job.name, slot: slotName(due) });
    const delivered = { job: job.name, schedule: index, scheduledTime: slotName(due) };
    if (this.#happens(odds.never)) return;
    const lateMs = this.#happens(odds.late)
      ? minute + this.#random() * 3 * hour
      : this.#random() * 2 * second;
    this.#invoke(new Date(due.getTime() + lateMs), job, delivered);
    if (this.#happens(odds.twice))
      this.#invoke(new Date(due.getTime() + lateMs + this.#random() * hour), job, delivered);
  }

  /** One asynchronous invocation, with the retries that Lambda gives it. */
  #invoke(at: Date, job: Job, event: unknown, retry = 0): void {
    this.#at(at, async () => {
      if (this.#isOut(at)) return;
      const again = await this.#deliver(job.name, event);
      const waitMs = retryAfterMs[retry];
      if (again && waitMs !== undefined && retry < job.retries)
        this.#invoke(new Date(this.#now + waitMs), job, event, retry + 1);
    });
  }

  /** @returns whether the invocation failed */
  async #deliver(name: string, event: unknown): Promise<boolean> {
    const registry = defineJobs(this.#jobs);
    if (!registry.has(name)) return false;
    const delivery = deliveryOf(event, {
      registry,
      ownJob: name,
      deliveryId: null,
      now: new Date(this.#now),
    });
    this.#delivered.add(`${name} ${delivery.slot}`);
    if (this.#happens(odds.death)) return this.#dieIn(delivery);
    return deservesRetry(await coordinate(delivery, 600 * second, this.#coordinator()));
  }

  /** The process dies in the middle of the work: its connection breaks, and it can reach nobody to say so. */
  async #dieIn(delivery: ReturnType<typeof deliveryOf>): Promise<boolean> {
    const proxy = await startProxy({ targetPort: Number(new URL(this.#db.url).port) });
    this.#doomed = async () => proxy.stop();
    const target = { ...targetOf(proxy.url(this.#db.url)), connectTimeoutMs: 500 };
    try {
      await coordinate(delivery, 600 * second, { ...this.#coordinator(), target });
    } catch (error) {
      if (!(error instanceof OutcomeUnknown)) throw error;
    } finally {
      this.#doomed = null;
      await proxy.stop();
    }
    // Lambda retries a crash like an error; half of them get lost on the way, for the sweep to make up for.
    return this.#random() < 0.5;
  }

  async #work(job: string, lastsMs: number, { slot, signal }: WorkContext): Promise<unknown> {
    const doom = this.#doomed;
    this.#doomed = null;
    if (doom) {
      await doom();
      signal.throwIfAborted();
    }
    if (this.#happens(odds.failure)) throw new Error('failed, as now and then');
    if (lastsMs > 0) await this.#until(this.#now + lastsMs);
    this.worked.set(`${job} ${slot}`, (this.worked.get(`${job} ${slot}`) ?? 0) + 1);
    return null;
  }

  async #sweep(): Promise<void> {
    if (this.#isOut(new Date(this.#now))) return;
    const pass = new Map<string, number>();
    const sweep = sweepJob({
      registry: defineJobs(this.#jobs),
      deliver: async (request) => this.#takeFromSweep(request, pass),
      openSession: async () => Session.open(targetOf(this.#db.url)),
      sinks: [],
      timeoutMs: second,
      retentionMs: 365 * day,
      gapMs: 0,
      clock: () => new Date(this.#now),
      logger: this.#coordinator().logger,
    });
    const own = { slot: `manual:${++this.#sweeps}`, byHand: true };
    const run = await coordinate(
      deliveryFor(sweep, new Date(this.#now), own),
      600 * second,
      this.#coordinator(),
    );
    if (run.status !== 'succeeded' && run.skipReason !== 'held')
      throw new Error(`sweep ${run.status}: ${JSON.stringify(run.error)}`);
    for (const [job, n] of pass)
      this.caughtUpInOnePass.set(job, Math.max(n, this.caughtUpInOnePass.get(job) ?? 0));
  }

  #takeFromSweep(request: RunRequest, pass: Map<string, number>): void {
    const { job: name, slot } = request.cronce;
    const job = this.#jobs.find((one) => one.name === name);
    if (!job) return;
    // What was delivered before is a retry made up for, and no catching up.
    if (!this.#delivered.has(`${name} ${slot}`)) pass.set(name, (pass.get(name) ?? 0) + 1);
    this.#invoke(new Date(this.#now + second), job, request);
  }

  #coordinator() {
    return coordinatorOn(this.#db.url, { leaseMs: 2 * second, clock: () => new Date(this.#now) });
  }

  #isOut(at: Date): boolean {
    return at >= this.#calendar.outage.from && at < this.#calendar.outage.until;
  }

  #happens(chance: number): boolean {
    return this.#random() < chance;
  }

  async #sql(statement: string): Promise<void> {
    await this.#db.query(statement, [new Date(this.#now)]);
  }

  #at(at: Date, happen: () => Promise<void>): void {
    const happening = { at: at.getTime(), order: this.#order++, happen };
    let [low, high] = [0, this.#queue.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isBefore(this.#queue[middle] as Happening, happening)) low = middle + 1;
      else high = middle;
    }
    this.#queue.splice(low, 0, happening);
  }

  /** Lets everything happen that is due by then, and the time be then. */
  async #until(then: number, onStep?: (now: number) => void): Promise<void> {
    for (let next = this.#queue[0]; next && next.at <= then; next = this.#queue[0]) {
      this.#queue.shift();
      this.#now = Math.max(this.#now, next.at);
      await next.happen();
      onStep?.(this.#now);
    }
    this.#now = Math.max(this.#now, then);
  }
}

function isBefore(one: Happening, other: Happening): boolean {
  return one.at < other.at || (one.at === other.at && one.order < other.order);
}
