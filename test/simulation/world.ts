import { coordinate, type Coordinator } from '../../src/coordinate.ts';
import { defineJobs, type Job, type WorkContext } from '../../src/job.ts';
import { occurrencesBetween } from '../../src/calendar/occurrences.ts';
import { OutcomeUnknown } from '../../src/path/outcome.ts';
import { Session } from '../../src/postgres/session.ts';
import { deservesRetry } from '../../src/run.ts';
import { sweepJob } from '../../src/sweep/sweep.ts';
import { deliveryOf, slotName, type Delivery, type RunRequest } from '../../src/path/trigger.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import type { TestDatabase } from '../support/database.ts';
import { startProxy } from '../support/proxy.ts';
import { randomFrom } from '../support/random.ts';
import { services, type Behaviour } from './jobs.ts';

const second = 1_000;
const minute = 60 * second;
const hour = 60 * minute;
const day = 24 * hour;

/** How often things go wrong; shares of all deliveries. */
const odds = { twice: 0.02, late: 0.01, never: 0.0025, unheard: 0.01, death: 0.0025, failure: 0.03 } as const;
/** Each costs the real database some tenths of a second. */
const sweepEveryMs = 2 * hour;
/** Lambda drops what is deeper in a chain of functions that invoke each other. */
const deepest = 16;
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
  /** The deployment and the job. */
  readonly job: string;
  readonly slot: string;
}

/** One of the services that share the database: its registry, and its sweep. */
interface Service {
  readonly deployment: string;
  readonly versions: readonly (readonly Job[])[];
  jobs: readonly Job[];
  sweeps: number;
}

/** What happens now: over once it has come to its end, or sleeps. */
interface Turn {
  readonly over: () => void;
  readonly failed: (error: unknown) => void;
}

/** One asynchronous invocation: Lambda tries it again where it fails, and knows how deep in a chain it is. */
interface Invocation {
  readonly job: string;
  readonly event: unknown;
  readonly retry: number;
  readonly depth: number;
}

/**
 * Ninety days of EventBridge and Lambda in virtual time: a queue of happenings. Work that lasts sleeps in it, so that any
 * number of invocations overlap; but only one is awake at a time, and what comes out depends on the seed alone.
 */
export class World {
  readonly due: Due[] = [];
  /** Invocations that Lambda dropped, since they were too deep in a chain. */
  dropped = 0;
  readonly #plan: Plan;
  readonly #db: TestDatabase;
  readonly #url: string;
  readonly #random: () => number;
  readonly #queue: Happening[] = [];
  readonly #calendar: ReturnType<typeof calendarOf>;
  readonly #services: readonly Service[];
  #now: number;
  #order = 0;
  #turn: Turn | null = null;
  #doomed: (() => Promise<void>) | null = null;

  /** @param url by which the invocations reach the database, if another than its own: a pooler's */
  constructor(plan: Plan, db: TestDatabase, url = db.url) {
    this.#plan = plan;
    this.#db = db;
    this.#url = url;
    this.#random = randomFrom(plan.seed);
    this.#calendar = calendarOf(plan);
    this.#now = plan.start.getTime();
    const behaviour: Behaviour = (lastsMs) => async (context) => this.#work(lastsMs, context);
    this.#services = services(behaviour).map((given) => ({
      ...given,
      jobs: [],
      sweeps: 0,
    }));
  }

  async run(onProgress: (share: number) => void): Promise<void> {
    const { start } = this.#plan;
    const { pause, end } = this.#calendar;
    const [paused] = this.#services;
    const of = `'${paused?.deployment ?? ''}'`;
    this.#at(pause.from, async () =>
      this.#sql(`SELECT cronce.pause_job('paused-a-while', 'ann', 'a look', $1, ${of})`),
    );
    this.#at(pause.until, async () =>
      this.#sql(`SELECT cronce.resume_job('paused-a-while', 'ann', $1, ${of})`),
    );
    for (const [index, service] of this.#services.entries()) this.#schedule(service, index * minute);
    const whole = end.getTime() - start.getTime();
    for (let next = this.#queue.shift(); next; next = this.#queue.shift()) {
      this.#now = Math.max(this.#now, next.at);
      await this.#play(next.happen);
      onProgress(Math.min(1, (this.#now - start.getTime()) / whole));
    }
  }

  /** Until it has come to its end, or sleeps. */
  async #play(happen: () => Promise<void>): Promise<void> {
    await new Promise<void>((over, failed) => {
      this.#turn = { over, failed };
      happen().then(
        () => this.#turn?.over(),
        (error: unknown) => this.#turn?.failed(error),
      );
    });
  }

  /** Lets everything else happen that is due by then. */
  async #sleep(ms: number): Promise<void> {
    const woken = new Promise<void>((wake) => {
      this.#at(new Date(this.#now + ms), async () => {
        wake();
        return new Promise(() => undefined); // the turn is over with what was woken
      });
    });
    this.#turn?.over();
    await woken;
  }

  /** The whole of a service's time; its sweeps come somewhat after the other's. */
  #schedule(service: Service, offsetMs: number): void {
    const { start } = this.#plan;
    const { redeploy, end } = this.#calendar;
    this.#deploy(service, 0, start, redeploy);
    this.#at(redeploy, async () => this.#sweep(service));
    this.#deploy(service, 1, redeploy, end);
    // At the end all schedules are switched off; the last slots are accounted for later, and retries still come.
    this.#at(end, async () => this.#sweep(service));
    this.#at(new Date(end.getTime() + 1), async () => {
      service.jobs = service.jobs.map((job) => ({ ...job, enabled: false }));
      return Promise.resolve();
    });
    this.#at(new Date(end.getTime() + 10 * minute), async () => this.#sweep(service));
    for (let at = start.getTime() + sweepEveryMs; at <= end.getTime() + 6 * hour; at += sweepEveryMs)
      this.#at(new Date(at + offsetMs + 30 * second), async () => this.#sweep(service));
  }

  /** From a deployment on, its jobs' schedules are delivered; a sweep follows it, and knows them from then on. */
  #deploy(service: Service, version: number, from: Date, until: Date): void {
    const jobs = service.versions[version] ?? [];
    this.#at(from, async () => {
      service.jobs = jobs;
      await this.#sweep(service);
    });
    for (const job of jobs.filter(({ enabled }) => enabled))
      job.schedules.forEach((given, index) => {
        const anchor = job.name === 'expire-rate' ? this.#plan.start : from;
        for (const due of occurrencesBetween(given.schedule, from, until, given.timeZone, anchor))
          this.#owe(service, job, index, due);
      });
  }

  #owe(service: Service, job: Job, index: number, due: Date): void {
    this.due.push({ job: `${service.deployment} ${job.name}`, slot: slotName(due) });
    const delivered = { job: job.name, schedule: index, scheduledTime: slotName(due) };
    if (this.#happens(odds.never)) return;
    const lateMs = this.#happens(odds.late)
      ? minute + this.#random() * 3 * hour
      : this.#random() * 2 * second;
    const invocation = { job: job.name, event: delivered, retry: 0, depth: 1 };
    this.#invoke(service, new Date(due.getTime() + lateMs), invocation);
    if (this.#happens(odds.twice))
      this.#invoke(service, new Date(due.getTime() + lateMs + this.#random() * hour), invocation);
  }

  #invoke(service: Service, at: Date, invocation: Invocation): void {
    if (invocation.depth > deepest) this.dropped += 1;
    else this.#at(at, async () => this.#run(service, invocation));
  }

  async #run(service: Service, invocation: Invocation): Promise<void> {
    if (this.#isOut(new Date(this.#now))) return;
    const job = service.jobs.find(({ name }) => name === invocation.job);
    if (!job || !(await this.#deliver(service, job, invocation))) return;
    const waitMs = retryAfterMs[invocation.retry];
    if (waitMs !== undefined && invocation.retry < job.retries)
      this.#invoke(service, new Date(this.#now + waitMs), { ...invocation, retry: invocation.retry + 1 });
  }

  /** @returns whether the invocation failed */
  async #deliver(service: Service, { name }: Job, { event, depth }: Invocation): Promise<boolean> {
    const registry = defineJobs(service.jobs);
    const now = new Date(this.#now);
    const delivery = deliveryOf(event, { registry, ownJob: name, deliveryId: null, now });
    const coordinator = this.#coordinator(service, depth);
    if (this.#happens(odds.death)) return this.#dieIn(delivery, coordinator);
    return deservesRetry(await coordinate(delivery, 600 * second, coordinator));
  }

  /** The process dies in the middle of the work: its connection breaks, and it can reach nobody to say so. */
  async #dieIn(delivery: Delivery, coordinator: Coordinator): Promise<boolean> {
    const proxy = await startProxy({ targetPort: Number(new URL(this.#url).port) });
    this.#doomed = async () => proxy.stop();
    const target = { ...targetOf(proxy.url(this.#url)), connectTimeoutMs: 500 };
    try {
      await coordinate(delivery, 600 * second, { ...coordinator, target });
    } catch (error) {
      if (!(error instanceof OutcomeUnknown)) throw error;
    } finally {
      this.#doomed = null;
      await proxy.stop();
    }
    // Lambda retries a crash like an error; half of them get lost on the way, for the sweep to make up for.
    return this.#random() < 0.5;
  }

  async #work(lastsMs: number, { signal }: WorkContext): Promise<unknown> {
    const doom = this.#doomed;
    this.#doomed = null;
    if (doom) {
      await doom();
      signal.throwIfAborted();
    }
    if (this.#happens(odds.failure)) throw new Error('failed, as now and then');
    if (lastsMs > 0) await this.#sleep(lastsMs);
    return null;
  }

  async #sweep(service: Service): Promise<void> {
    if (this.#isOut(new Date(this.#now))) return;
    const { deployment } = service;
    const sweep = sweepJob({
      registry: defineJobs(service.jobs),
      deployment,
      deliver: async (request) => this.#start(service, request, 2),
      openSession: async () => Session.open(targetOf(this.#url)),
      sinks: [],
      timeoutMs: second,
      retentionMs: 365 * day,
      gapMs: 0,
      clock: () => new Date(this.#now),
      logger: this.#coordinator(service, 1).logger,
    });
    const own = { slot: `manual:${++service.sweeps}`, byHand: true };
    const delivery = deliveryFor(sweep, new Date(this.#now), own);
    const run = await coordinate(delivery, 600 * second, this.#coordinator(service, 1));
    if (run.status !== 'succeeded' && run.skipReason !== 'held')
      throw new Error(`sweep ${run.status}: ${JSON.stringify(run.error)}`);
  }

  /** An asynchronous invocation: it comes a little later, whatever runs then; now and then it never does. */
  #start(service: Service, { cronce }: RunRequest, depth: number): void {
    if (this.#happens(odds.unheard)) return;
    const invocation = { job: cronce.job, event: { cronce }, retry: 0, depth };
    this.#invoke(service, new Date(this.#now + second), invocation);
  }

  #coordinator(service: Service, depth: number): Coordinator {
    return coordinatorOn(this.#url, {
      deployment: service.deployment,
      leaseMs: 2 * second,
      clock: () => new Date(this.#now),
      deliver: async (request) => {
        this.#start(service, request, depth + 1);
        return Promise.resolve();
      },
    });
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
}

function isBefore(one: Happening, other: Happening): boolean {
  return one.at < other.at || (one.at === other.at && one.order < other.order);
}
