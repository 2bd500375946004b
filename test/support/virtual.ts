/**
 * A deployment in virtual time: its jobs, its clock, its sweep, and a stand-in for Lambda, which takes what the sweep and
 * the runs ask for, and runs it once the test says so.
 */
import { coordinate, type Coordinator } from '../../src/coordinate.ts';
import { defineJobs, type Job } from '../../src/job.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';
import { sweepJob, type SweepOptions, type Swept } from '../../src/sweep/sweep.ts';
import { deliveryOf, type Delivery, type RunRequest } from '../../src/path/trigger.ts';
import { coordinatorOn, deliveryFor, keepingLogger, targetOf } from './coordinator.ts';

const minute = 60_000;

/** Lambda drops an invocation that is deeper in a chain of functions which invoke each other. */
const deepest = 16;

let sweeps = 0;

export class VirtualWorld {
  now: Date;
  jobs: readonly Job[];
  /** What Lambda has taken and not run yet. */
  readonly asked: RunRequest[] = [];
  /** What Lambda has dropped. */
  readonly dropped: RunRequest[] = [];
  readonly logger = keepingLogger();
  readonly #url: string;
  readonly #deployment: string;
  readonly #depths = new WeakMap<RunRequest, number>();

  constructor(url: string, now: string, jobs: readonly Job[], deployment = 'default') {
    this.#url = url;
    this.now = new Date(now);
    this.jobs = jobs;
    this.#deployment = deployment;
  }

  /** Of an invocation so deep in its chain. */
  coordinatorAt(depth: number): Coordinator {
    return coordinatorOn(this.#url, {
      deployment: this.#deployment,
      clock: () => this.now,
      logger: this.logger,
      deliver: async (request) => {
        this.#take(request, depth + 1);
        return Promise.resolve();
      },
    });
  }

  get coordinator(): Coordinator {
    return this.coordinatorAt(1);
  }

  #take(request: RunRequest, depth: number): void {
    this.#depths.set(request, depth);
    (depth > deepest ? this.dropped : this.asked).push(request);
  }

  pass(ms: number): this {
    this.now = new Date(this.now.getTime() + ms);
    return this;
  }

  async deliver(job: Job, slot: string | Date, overrides: Partial<Delivery> = {}): Promise<RunRecord> {
    return coordinate(deliveryFor(job, slot, overrides), minute, this.coordinator);
  }

  /** Runs what was asked for, and what that asks for, as each job's own function would: all that waits at once. */
  async runAsked(): Promise<RunRecord[]> {
    const runs: RunRecord[] = [];
    while (this.asked.length > 0)
      runs.push(...(await Promise.all(this.asked.splice(0).map((request) => this.run(request)))));
    return runs;
  }

  async run(request: RunRequest): Promise<RunRecord> {
    const around = { registry: defineJobs(this.jobs), ownJob: null, deliveryId: null, now: this.now };
    const depth = this.#depths.get(request) ?? 1;
    return coordinate(deliveryOf(request, around), minute, this.coordinatorAt(depth));
  }

  async sweep(overrides: Partial<SweepOptions> = {}): Promise<Swept> {
    const run = await this.sweepRun(overrides);
    if (run.status !== 'succeeded') throw new Error(`sweep ${run.status}: ${JSON.stringify(run.error)}`);
    return run.output as unknown as Swept;
  }

  async sweepRun(overrides: Partial<SweepOptions> = {}, timeLeftMs = minute): Promise<RunRecord> {
    const job = sweepJob({
      registry: defineJobs(this.jobs),
      deployment: this.#deployment,
      deliver: async (request) => {
        this.#take(request, 2);
        return Promise.resolve();
      },
      openSession: async () => Session.open(targetOf(this.#url)),
      sinks: [],
      timeoutMs: 1_000,
      retentionMs: 30 * 24 * 60 * minute,
      gapMs: 0,
      clock: () => this.now,
      logger: this.logger,
      ...overrides,
    });
    // By hand, since two sweeps of one virtual minute would be duplicates.
    const byHand = { slot: `manual:${process.pid}-${++sweeps}`, byHand: true };
    return coordinate(deliveryFor(job, this.now, byHand), timeLeftMs, this.coordinator);
  }
}
