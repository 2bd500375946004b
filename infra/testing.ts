/**
 * `cronce/testing`: a job run in a transaction that is rolled back, for its author's own tests, with no AWS. The work gets
 * the very `tx`, time limit and capture of results that a run gives it; there is no lock, no record and no schema of
 * Cronce's behind it.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { mock } from 'node:test';
import { v7 as uuidV7 } from 'uuid';
import { captureValue } from '../src/capture.ts';
import type { Job, Transaction, WorkContext } from '../src/job.ts';
import { Stop } from '../src/path/ending.ts';
import { verdictOf } from '../src/path/outcome.ts';
import { slotName } from '../src/path/trigger.ts';
import { WorkTransaction } from '../src/path/transaction.ts';
import { performWork } from '../src/path/work.ts';
import { Session } from '../src/postgres/session.ts';
import type { Json, Logger, Outcome, RunError, RunRecord } from '../src/run.ts';
import { readSettings } from '../src/settings.ts';
import { startPostgres } from './local/postgres.ts';

export interface TestbedOptions {
  /** A database of one's own; absent, a PostgreSQL is started for these tests and gone with {@link Testbed.close}. */
  readonly url?: string;
  /** Run once, and kept: the tables that the jobs need. Only on a server that was started for this. */
  readonly schema?: string;
}

export interface RehearsalOptions {
  /** When the slot was due; default: now. */
  readonly scheduledFor?: Date | string;
  readonly params?: unknown;
  /** Default 1. */
  readonly attempt?: number;
  /** Sets the clock that JavaScript reads (`Date`), for as long as the work runs; SQL's goes on as it is. */
  readonly now?: Date | string;
  /** Before the work, in its transaction: the rows that it is to find. */
  readonly given?: (tx: Transaction) => Promise<unknown>;
  /** After work that returned, in its transaction: what it has written. Answered as `seen`. */
  readonly see?: (tx: Transaction) => Promise<unknown>;
  /** Stops the work as a run is stopped, after so many ms. */
  readonly stop?: { readonly reason: 'lock_lost' | 'deadline' | 'cancelled'; readonly afterMs: number };
  /** Default: silent. */
  readonly logger?: Logger;
}

/** What a run would have on record, and what was seen of its writes. */
export interface Rehearsal {
  readonly status: Outcome;
  /** What the work returned, as it would be recorded: as JSON. */
  readonly output: Json;
  readonly error: RunError | null;
  /** Whether there would be no other attempt, whatever attempts are left. */
  readonly final: boolean;
  readonly seen: unknown;
}

export interface Testbed {
  /** Of its database: for a session of the test's own. */
  readonly url: string;
  /**
   * Runs a job's work once; all it wrote is gone afterwards, also what it wrote by `fenced`.
   * @throws what `given` and `see` throw, and {@link TypeError} for params that are no JSON
   */
  run(job: Job, options?: RehearsalOptions): Promise<Rehearsal>;
  close(): Promise<void>;
}

const connectTimeoutMs = 10_000;
const graceMs = 500;
const nothing = () => undefined;
const silent: Logger = { debug: nothing, info: nothing, warn: nothing, error: nothing };

/** @throws {LocalPostgresError} where no server could be started, and what a driver says */
export async function openTestbed({ url, schema }: TestbedOptions = {}): Promise<Testbed> {
  if (url !== undefined) return testbedAt(url, async () => undefined);
  const folder = await mkdtemp(join(tmpdir(), 'cronce-testing-'));
  const forget = async () => rm(folder, { recursive: true, force: true });
  const server = await startPostgres({ dataDir: join(folder, 'server'), settings: { fsync: 'off' } }).catch(
    async (error: unknown) => {
      await forget();
      throw error;
    },
  );
  const end = async () => server.kill().finally(forget);
  try {
    if (schema !== undefined) await execute(server.url, schema);
    return testbedAt(server.url, end);
  } catch (error) {
    await end();
    throw error;
  }
}

function testbedAt(url: string, end: () => Promise<unknown>): Testbed {
  return {
    url,
    run: async (job, options = {}) => rehearse(url, job, options),
    close: async () => {
      await end();
    },
  };
}

async function open(url: string): Promise<Session> {
  const { target } = readSettings({ DATABASE_URL: url });
  return Session.open({ ...target, connectTimeoutMs });
}

async function execute(url: string, sql: string): Promise<void> {
  const session = await open(url);
  try {
    await session.send(sql);
  } finally {
    await session.close();
  }
}

async function rehearse(url: string, job: Job, options: RehearsalOptions): Promise<Rehearsal> {
  const run = recordFor(job, options);
  const session = await open(url);
  const stopping = new AbortController();
  const { stop } = options;
  const timer =
    stop &&
    setTimeout(
      () => stopping.abort(new Stop(stop.reason, `the test stopped it: ${stop.reason}`)),
      stop.afterMs,
    );
  const around = new Around(job, session, options);
  try {
    await session.send('BEGIN ISOLATION LEVEL READ COMMITTED; SAVEPOINT work');
    const result = await performWork({
      run,
      work: around.work,
      session,
      pid: 0,
      lock: { signal: stopping.signal, check: () => stopping.signal.throwIfAborted() },
      timeMs: job.timeoutMs,
      graceMs,
      restMs: 0,
      logger: options.logger ?? silent,
      openSession: async () => Promise.reject(new Error('a rehearsal has one session')),
    });
    if (around.failed !== undefined) throw around.failed.error;
    return { ...verdictOf(result, session.lost.aborted), seen: around.seen };
  } finally {
    clearTimeout(timer);
    await session.send('ROLLBACK', connectTimeoutMs).catch(() => undefined); // its connection may be what was lost
    await session.close();
  }
}

/** The work, with the test's own steps before and behind it. */
class Around {
  readonly #job: Job;
  readonly #session: Session;
  readonly #options: RehearsalOptions;
  seen: unknown;
  /** An error of the test's own, which is none of the run's. */
  failed: { readonly error: unknown } | undefined;

  constructor(job: Job, session: Session, options: RehearsalOptions) {
    this.#job = job;
    this.#session = session;
    this.#options = options;
  }

  readonly work = async (context: WorkContext): Promise<unknown> => {
    const { given, see } = this.#options;
    await this.#own(async () => given?.(context.tx));
    const value = await this.#atItsTime(async () =>
      this.#job.work({ ...context, fenced: nested(this.#session) }),
    );
    await context.tx.query('SET CONSTRAINTS ALL IMMEDIATE');
    this.seen = await this.#own(async () => see?.(context.tx));
    return value;
  };

  async #own<T>(step: () => Promise<T>): Promise<T> {
    return step().catch((error: unknown) => {
      this.failed ??= { error };
      throw error;
    });
  }

  async #atItsTime<T>(work: () => Promise<T>): Promise<T> {
    const { now } = this.#options;
    if (now === undefined) return work();
    mock.timers.enable({ apis: ['Date'], now: new Date(now) });
    return work().finally(() => mock.timers.reset());
  }
}

/** Commits with the run's own writes and not before them, so that all of it can be rolled back. */
function nested(session: Session): WorkContext['fenced'] {
  return async (body) => {
    await session.send('SAVEPOINT fenced');
    const tx = new WorkTransaction(session, () => undefined);
    try {
      const value = await body(tx);
      await tx.settle();
      await session.send('RELEASE SAVEPOINT fenced');
      return value;
    } catch (error) {
      await session.send('ROLLBACK TO SAVEPOINT fenced; RELEASE SAVEPOINT fenced');
      throw error;
    }
  };
}

function recordFor(job: Job, { scheduledFor, params, attempt = 1 }: RehearsalOptions): RunRecord {
  const due = scheduledFor === undefined ? new Date() : new Date(scheduledFor);
  const record: Partial<RunRecord> = {
    id: uuidV7(),
    job: job.name,
    slot: slotName(due),
    scheduledFor: due.toISOString(),
    attempt,
    params: captureValue(params ?? null),
    fence: '1',
    leaseMs: job.leaseMs ?? 15_000,
    status: 'running',
  };
  return record as RunRecord; // of which the work is shown no more than this
}
