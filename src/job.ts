import type { Pool, PoolClient, QueryConfig, QueryResult, QueryResultRow } from './postgres/driver.ts';
import { checkTimeZone, parseSchedule, ScheduleError, type Schedule } from './schedule.ts';
import type { Json, Logger } from './run.ts';

/**
 * The lock's own transaction, as far as work may use it. Shaped like a node-postgres pool of one connection, so
 * `drizzle(tx)` and Kysely's `PostgresDialect({ pool: tx })` take it. Statements are bounded by the run's deadline.
 *
 * A BEGIN (a builder's transaction) is a savepoint, and nests; until it ends, statements of others wait: inside it
 * use the handle that it gives you. A transaction still open when the work returns fails the run. Listeners are
 * never called; `end` and `release` do nothing. Names of prepared statements are left out. Session locks, settings
 * and temporary tables that a statement's text shows are undone at the end, with a warning; what a function of the
 * database does inside is not seen.
 * @throws {ForbiddenStatement} for what would end the lock's transaction or stay on a pooled connection: COMMIT and
 * ROLLBACK without their BEGIN, another isolation level, PREPARE, SET without LOCAL, LISTEN, COPY, cursors of the
 * driver, several statements in one text
 * @throws {WorkIsOver} for any use after the work has ended or was told to stop
 */
export interface Transaction extends Omit<Pool, 'query' | 'connect'> {
  query<Row extends QueryResultRow = Record<string, unknown>>(
    query: string | QueryConfig,
    values?: readonly unknown[],
  ): Promise<QueryResult<Row>>;
  query<Row extends QueryResultRow = Record<string, unknown>>(
    query: string | QueryConfig,
    callback: (error: Error, result: QueryResult<Row>) => void,
  ): void;
  query<Row extends QueryResultRow = Record<string, unknown>>(
    query: string | QueryConfig,
    values: readonly unknown[],
    callback: (error: Error, result: QueryResult<Row>) => void,
  ): void;
  /**
   * The same session again, with transactions of its own. Of pg's client only `query`, the escapes and what does
   * nothing (`release`, `end`, listeners) are there.
   */
  connect(): Promise<PoolClient>;
  connect(callback: (error: undefined, client: PoolClient, done: () => void) => void): void;
}

/** What a job's function is given. */
export interface WorkContext {
  readonly job: string;
  readonly slot: string;
  readonly runId: string;
  /** When this slot was due; of a manual run, when it was asked for. Reckon from this and not from the clock. */
  readonly scheduledFor: Date;
  /** 1 for the first started run of this slot. */
  readonly attempt: number;
  readonly params: Json;
  readonly logger: Logger;
  /** Commits together with the record of success, or not at all. */
  readonly tx: Transaction;
  /** Aborts with a {@link Stop} as its reason. */
  readonly signal: AbortSignal;
  /**
   * Throws if the lock can no longer be vouched for. Call it right before an effect outside Postgres, with no
   * `await` in between: that is what keeps a thawed process from acting.
   * @throws {Stop}
   */
  readonly check: () => void;
  /**
   * Runs one small transaction on a second session, which commits only while this run's fence is the lock's last:
   * for long work in many commits. What it committed stays, whatever becomes of the run.
   * @throws {Stop} once a successor has the lock; nothing is committed then
   */
  readonly fenced: <T>(body: (tx: Transaction) => Promise<T>) => Promise<T>;
  /** Grows with each run under this lock. Send it along with effects on systems that can compare it. */
  readonly fence: bigint;
  /** The same for every attempt of this slot. For systems that deduplicate. */
  readonly idempotencyKey: string;
}

/** Thrown by work to say that another attempt would be no better: the run fails for good. */
export class PermanentError extends Error {
  override readonly name = 'PermanentError';
}

/** When a job is due. An EventBridge rule by default; EventBridge Scheduler where any but `at` and `enabled` is given. */
export interface ScheduleOptions {
  /** `cron(…)` or `rate(…)`, as AWS writes them. */
  readonly at: string;
  /** IANA name; UTC if absent. */
  readonly timeZone?: string;
  /** Scheduler may spread the delivery over so many minutes after the slot, 1 to 1440. */
  readonly flexibleMinutes?: number;
  /** Not before, not after: ISO 8601. */
  readonly start?: string;
  readonly end?: string;
  /** False: deployed, but not delivered. */
  readonly enabled?: boolean;
}

export interface JobOptions {
  /** Lower-case letters, digits and hyphens, at most 40: it becomes part of a Lambda function's name. */
  readonly name: string;
  readonly description?: string;
  /** Absent for a job that only runs by hand. */
  readonly schedule?: string | ScheduleOptions | readonly (string | ScheduleOptions)[];
  /** The longest a run may take, ms; default 5 min, at most 14.5 min (Lambda ends at 15). */
  readonly timeoutMs?: number;
  /** How long the server lets a silent holder keep the lock, ms, 2 s to 5 min; default: the deployment's. */
  readonly leaseMs?: number;
  /**
   * How long the next run of this lock waits before its work, where this job's run did not end by itself (killed, cut off,
   * ended by force): its work may still go on. 0, for a job that writes through `tx` and `fenced` alone, or at least the
   * lease; default: the lease.
   */
  readonly lockDelayMs?: number;
  /**
   * The lock's name, if another than the job's: jobs with the same lock exclude each other. An integer is a key as
   * it is, to exclude services in any language that take this advisory lock. A function names the lock by the
   * run's params (one a tenant, say).
   */
  readonly lock?: string | bigint | ((params: Json) => string | bigint);
  /** How many runs may hold the lock at once; default 1. */
  readonly slots?: number;
  /**
   * What to do where the lock is held. `skip` (default); `wait` up to `waitMs`, then skip; `replace` the run that
   * holds it; `allow` other slots of this job to overlap (duplicates of one slot never do).
   */
  readonly overlap?: 'skip' | 'wait' | 'replace' | 'allow';
  /** For `wait` and `replace`, ms; default 10 s, at most 5 min. */
  readonly waitMs?: number;
  /** Further attempts after a run that went wrong, 0 to 2 as Lambda gives them; default 2. */
  readonly retries?: 0 | 1 | 2;
  /** Whether a slot whose run was lost may run again. `hold` leaves it to a person; default `rerun`. */
  readonly afterLost?: 'rerun' | 'hold';
  /** A delivery that comes later than this after its slot is skipped as `too_late`, ms; default: never. */
  readonly startDeadlineMs?: number;
  /**
   * What becomes of due slots that nothing delivered, once the sweep has recorded them as `missed`: `skip` (default)
   * leaves it at that, `one` runs the latest of them, `all` runs each, oldest first, `catchUpLimit` at most.
   */
  readonly catchUp?: 'skip' | 'one' | 'all';
  /** 1 to 1000; default 10. */
  readonly catchUpLimit?: number;
  /** False: its schedules are deployed but not delivered, and nothing is missed. It can still be run by hand. */
  readonly enabled?: boolean;
  readonly work: (context: WorkContext) => Promise<unknown>;
}

export interface JobSchedule {
  readonly schedule: Schedule;
  readonly timeZone: string;
  /** Which service delivers it: a rule knows only UTC. */
  readonly via: 'rule' | 'scheduler';
  readonly flexibleMinutes: number | null;
  readonly start: Date | null;
  readonly end: Date | null;
  readonly enabled: boolean;
}

/** A job with every option decided. */
export interface Job {
  readonly name: string;
  readonly description: string;
  readonly schedules: readonly JobSchedule[];
  readonly timeoutMs: number;
  readonly leaseMs: number | null;
  /** Null: as long as the lease. */
  readonly lockDelayMs: number | null;
  readonly lock: string | bigint | ((params: Json) => string | bigint);
  readonly slots: number;
  readonly overlap: 'skip' | 'wait' | 'replace' | 'allow';
  readonly waitMs: number;
  readonly retries: number;
  readonly afterLost: 'rerun' | 'hold';
  readonly startDeadlineMs: number | null;
  readonly catchUp: 'skip' | 'one' | 'all';
  readonly catchUpLimit: number;
  readonly enabled: boolean;
  readonly work: (context: WorkContext) => Promise<unknown>;
}

/** An option of a job that can't be, with the cure. */
export class JobError extends Error {
  override readonly name = 'JobError';
}

/** Source of the bounds: Lambda's 15 minutes, less the time to record an outcome. */
const longestRunMs = 14.5 * 60_000;
const known = new Set<string>([
  'name',
  'description',
  'schedule',
  'timeoutMs',
  'leaseMs',
  'lockDelayMs',
  'lock',
  'slots',
  'overlap',
  'waitMs',
  'retries',
  'afterLost',
  'startDeadlineMs',
  'catchUp',
  'catchUpLimit',
  'enabled',
  'work',
] satisfies (keyof JobOptions)[]);

/**
 * Declares a job; its options are checked here and now.
 * @throws {JobError} naming the option, what was given and what is allowed
 */
export function defineJob(options: JobOptions): Job {
  const where = `job ${JSON.stringify(options.name)}`;
  const refuse = (option: string, given: unknown, allowed: string): never => {
    throw new JobError(`${where}: ${option} is ${show(given)}; allowed: ${allowed}`);
  };
  const whole = (option: keyof JobOptions, given: number, least: number, most: number) => {
    if (!Number.isInteger(given) || given < least || given > most)
      refuse(option, given, `a whole number from ${least} to ${most}`);
    return given;
  };
  const oneOf = <T extends string>(option: keyof JobOptions, given: T, allowed: readonly T[]): T =>
    allowed.includes(given) ? given : refuse(option, given, allowed.join(', '));

  for (const key of Object.keys(options)) if (!known.has(key)) refuse(key, 'unknown', [...known].join(', '));
  if (!/^[a-z][a-z0-9-]{0,39}$/.test(options.name))
    refuse('name', options.name, 'lower-case letters, digits and hyphens, a letter first, at most 40');
  if (typeof options.work !== 'function') refuse('work', options.work, 'an async function');

  const overlap = oneOf('overlap', options.overlap ?? 'skip', ['skip', 'wait', 'replace', 'allow']);
  const slots = whole('slots', options.slots ?? 1, 1, 100);
  if (overlap === 'allow' && (options.lock !== undefined || slots > 1))
    refuse('overlap', 'allow', 'without lock and slots, since each slot then has a lock of its own');
  if (typeof options.lock === 'bigint' && slots > 1)
    refuse('slots', slots, 'only 1 where lock is an integer');
  if (typeof options.lock === 'bigint') checkKey(options.lock);
  if (options.lock === '') refuse('lock', options.lock, 'a name of at least one character');

  return {
    name: options.name,
    description: options.description ?? '',
    schedules: schedulesOf(options, where),
    timeoutMs: whole('timeoutMs', options.timeoutMs ?? 300_000, 100, longestRunMs),
    leaseMs: options.leaseMs === undefined ? null : whole('leaseMs', options.leaseMs, 2_000, 300_000),
    lock: options.lock ?? options.name,
    slots,
    overlap,
    waitMs: whole('waitMs', options.waitMs ?? 10_000, 0, 300_000),
    retries: whole('retries', options.retries ?? 2, 0, 2),
    lockDelayMs:
      options.lockDelayMs === undefined ? null : whole('lockDelayMs', options.lockDelayMs, 0, 600_000),
    afterLost: oneOf('afterLost', options.afterLost ?? 'rerun', ['rerun', 'hold']),
    startDeadlineMs:
      options.startDeadlineMs === undefined
        ? null
        : whole('startDeadlineMs', options.startDeadlineMs, 1_000, 7 * 86_400_000),
    catchUp: oneOf('catchUp', options.catchUp ?? 'skip', ['skip', 'one', 'all']),
    catchUpLimit: whole('catchUpLimit', options.catchUpLimit ?? 10, 1, 1_000),
    enabled: options.enabled ?? true,
    work: options.work,
  };
}

function schedulesOf(options: JobOptions, where: string): JobSchedule[] {
  const given = options.schedule ?? [];
  const list: readonly (string | ScheduleOptions)[] = isList(given) ? given : [given];
  return list.map((one) => {
    const { at, ...rest } = typeof one === 'string' ? { at: one } : one;
    try {
      return { schedule: parseSchedule(at), ...placed(rest, where) };
    } catch (error) {
      if (error instanceof ScheduleError)
        throw new JobError(`${where}: schedule: ${error.message}`, { cause: error });
      throw error;
    }
  });
}

/** Where a schedule is kept: a rule knows neither zone nor window, start or end. */
function placed(options: Omit<ScheduleOptions, 'at'>, where: string): Omit<JobSchedule, 'schedule'> {
  const { timeZone, flexibleMinutes, start, end, enabled = true } = options;
  if (timeZone !== undefined) checkTimeZone(timeZone);
  if (
    flexibleMinutes !== undefined &&
    !(Number.isInteger(flexibleMinutes) && flexibleMinutes >= 1 && flexibleMinutes <= 1_440)
  )
    throw new JobError(
      `${where}: flexibleMinutes is ${flexibleMinutes}; allowed: a whole number from 1 to 1440`,
    );
  const isRule = [timeZone, flexibleMinutes, start, end].every((option) => option === undefined);
  return {
    timeZone: timeZone ?? 'UTC',
    via: isRule ? 'rule' : 'scheduler',
    flexibleMinutes: flexibleMinutes ?? null,
    start: timeOf('start', start, where),
    end: timeOf('end', end, where),
    enabled,
  };
}

function timeOf(option: string, given: string | undefined, where: string): Date | null {
  if (given === undefined) return null;
  if (Number.isNaN(Date.parse(given)))
    throw new JobError(`${where}: ${option} is ${show(given)}; allowed: a time in ISO 8601`);
  return new Date(given);
}

function isList(given: JobOptions['schedule'] & {}): given is readonly (string | ScheduleOptions)[] {
  return Array.isArray(given);
}

/** @throws {JobError} for an integer that is no signed 64-bit advisory lock key */
export function checkKey(key: bigint): bigint {
  if (BigInt.asIntN(64, key) !== key)
    throw new JobError(`lock key ${key} does not fit a signed 64-bit integer`);
  return key;
}

function show(given: unknown): string {
  return typeof given === 'string' ? JSON.stringify(given) : String(given);
}

/** The jobs of a deployment, by name. */
export type Registry = ReadonlyMap<string, Job>;

/** @throws {JobError} if two jobs have one name */
export function defineJobs(jobs: readonly Job[]): Registry {
  const registry = new Map<string, Job>();
  for (const job of jobs) {
    if (registry.has(job.name))
      throw new JobError(`two jobs are named ${JSON.stringify(job.name)}; rename one`);
    registry.set(job.name, job);
  }
  return registry;
}
