import { instantOf } from './calendar/instant.ts';
import { checkLocks, isLockName, lockCure, lockWords, type LockChoice } from './lock-name.ts';
import { fallsDue } from './calendar/occurrences.ts';
import { flag, JobError, oneOf, readOptions, Refusal, refusal, show, whole } from './options.ts';
import type { Option, Options, Place } from './options.ts';
import type { Pool, PoolClient, QueryConfig, QueryResult, QueryResultRow } from './postgres/driver.ts';
import { checkTimeZone, parseSchedule, ScheduleError, type Schedule } from './calendar/expression.ts';
import { demandParams, isParamsSchema, refusesNone, type ParamsSchema } from './params.ts';
import type { Json, Logger } from './run.ts';

export { JobError };

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

/** What a job's function is given; its params as its schema made them, where it has one. */
export interface WorkContext<P = Json> {
  readonly job: string;
  readonly slot: string;
  readonly runId: string;
  /** When this slot was due; of a manual run, when it was asked for. Reckon from this and not from the clock. */
  readonly scheduledFor: Date;
  /** 1 for the first started run of this slot. */
  readonly attempt: number;
  readonly params: P;
  readonly logger: Logger;
  /** Commits together with the record of success, or not at all. */
  readonly tx: Transaction;
  /** Aborts with a {@link Stop} as its reason. */
  readonly signal: AbortSignal;
  /** How long until the signal aborts with `deadline`, ms: for work in portions that would rather leave some for next time. */
  readonly timeLeftMs: () => number;
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

/** When a job is due. An EventBridge rule by default; EventBridge Scheduler where any but `at` and `enabled` is given. */
export interface ScheduleOptions {
  /** `cron(…)` or `rate(…)`, as AWS writes them. */
  readonly at: string;
  /** IANA name; UTC if absent. */
  readonly timeZone?: string;
  /** Scheduler may spread the delivery over so many minutes after the slot, 1 to 1440. */
  readonly flexibleMinutes?: number;
  /** Not before, not after: ISO 8601 with its zone, such as 2027-01-01T00:00:00Z. */
  readonly start?: string;
  readonly end?: string;
  /** False: deployed, but not delivered. */
  readonly enabled?: boolean;
}

export interface JobOptions<P = Json> {
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
   * How long the next run of this lock waits before its work, where this job's run did not end by itself, ms, 0 to
   * 10 min; default: its lease. Nobody can tell a dead holder from one that is cut off and works on for up to a lease,
   * so it is 0 or no less than the lease: 0 is for a job that writes through `tx` and `fenced` alone, of whose work
   * nothing can come once the lock is lost.
   */
  readonly lockDelayMs?: number;
  /**
   * The lock's name, if another than the job's: jobs with the same lock exclude each other. An integer is a key as
   * it is, to exclude services in any language that take this advisory lock. A function names the lock by the
   * run's params (one a tenant, say); it is given them frozen and with sorted keys, and null where a run has none.
   * One that throws or names no lock fails the run.
   */
  readonly lock?: LockChoice;
  /** How many runs may hold the lock at once; default 1. */
  readonly places?: number;
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
   * leaves it at that, `one` runs the latest of an outage, `all` the oldest `catchUpLimit` of it, oldest first. An outage
   * lies between two slots that came by themselves. They run one after another; a slot that one of them turns away runs
   * in its turn.
   */
  readonly catchUp?: 'skip' | 'one' | 'all';
  /** 1 to 1000; default 10. */
  readonly catchUpLimit?: number;
  /** False: its schedules are deployed but not delivered, and nothing is missed. It can still be run by hand. */
  readonly enabled?: boolean;
  /**
   * What its params must be like: a schema of Zod, Valibot, ArkType or any other library of Standard Schema. The work's
   * `params` has its output type. What doesn't fit is refused by the HTTP API, and fails a run for good. A job with a
   * schedule needs one that does without: a schedule brings no params.
   */
  readonly params?: ParamsSchema<P>;
  readonly work: (context: WorkContext<P>) => Promise<unknown>;
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
  readonly lock: LockChoice;
  /** The jobs of its registry whose locks are named after themselves: whoever names one shares it in their deployment. */
  readonly ownLocks: ReadonlySet<string>;
  readonly places: number;
  readonly overlap: 'skip' | 'wait' | 'replace' | 'allow';
  readonly waitMs: number;
  readonly retries: number;
  readonly afterLost: 'rerun' | 'hold';
  readonly startDeadlineMs: number | null;
  readonly catchUp: 'skip' | 'one' | 'all';
  readonly catchUpLimit: number;
  readonly enabled: boolean;
  /** Null: any JSON. */
  readonly params: ParamsSchema<unknown> | null;
  /** Asks for its params' schema first. */
  readonly work: (context: WorkContext) => Promise<unknown>;
}

/** Source of the bounds: Lambda's 15 minutes, less the time to record an outcome. */
const longestRunMs = 14.5 * 60_000;

/**
 * No job was declared before: a schedule whose last occurrence is older can't be meant. A fixed day and not today, so
 * that a deployment doesn't end with a schedule of its jobs: that a schedule is over now is said when it is packaged.
 */
const firstDeclared = new Date('2026-11-01T00:00:00Z');

/** What each option of a job comes to; the name stands in for a lock that isn't given. */
type Decided = Omit<Job, 'schedules' | 'lock' | 'ownLocks'> & {
  readonly schedule: readonly JobSchedule[];
  readonly lock: LockChoice | null;
};

/** The options of a job: what is allowed, what is the default, and how each is checked. */
export const jobOptions: { readonly [K in keyof JobOptions]-?: Option<Decided[K]> } = {
  name: {
    allowed: 'lower-case letters, digits and hyphens, a letter first, at most 40',
    read: (given) => (isJobName(given) ? given : new Refusal()),
  },
  description: {
    allowed: 'a text',
    byDefault: '',
    read: (given) => (typeof given === 'string' ? given : new Refusal()),
  },
  schedule: {
    allowed: 'cron(…) or rate(…), an object with such an at, or a list of these',
    byDefault: [],
    alias: ['cron', 'rate', 'at', 'when', 'timeZone'],
    read: (given, place) => {
      if (!Array.isArray(given)) return isScheduleLike(given) ? [readSchedule(given, place)] : new Refusal();
      return given.map((one: unknown, index) =>
        readSchedule(one, { ...place, path: `${place.path}[${index}]` }),
      );
    },
  },
  timeoutMs: { ...whole(100, longestRunMs, 300_000), alias: ['deadlineMs', 'maxDurationMs'] },
  leaseMs: { ...whole(2_000, 300_000, null), alias: ['heartbeatMs', 'ttlMs'] },
  lockDelayMs: { ...whole(0, 600_000, null), alias: ['graceMs', 'delayMs'] },
  lock: {
    allowed: `${lockWords}, or a function of the params that answers one`,
    byDefault: null,
    alias: ['key', 'lockKey', 'lockName', 'mutex'],
    read: (given) =>
      isLockName(given) || isFunction<(params: Json) => string | bigint>(given)
        ? given
        : new Refusal(lockCure(given)),
  },
  places: { ...whole(1, 100, 1), alias: ['slots', 'concurrency', 'limit'] },
  overlap: { ...oneOf(['skip', 'wait', 'replace', 'allow'], 'skip'), alias: ['concurrencyPolicy'] },
  waitMs: whole(0, 300_000, 10_000),
  retries: { ...whole(0, 2, 2), alias: ['retry', 'attempts', 'maxRetries'] },
  afterLost: { ...oneOf(['rerun', 'hold'], 'rerun'), alias: ['onLost'] },
  startDeadlineMs: { ...whole(1_000, 7 * 86_400_000, null), alias: ['startingDeadlineSeconds'] },
  catchUp: { ...oneOf(['skip', 'one', 'all'], 'skip'), alias: ['backfill'] },
  catchUpLimit: whole(1, 1_000, 10),
  enabled: { ...flag(true), alias: ['disabled', 'suspend'] },
  params: {
    allowed: 'a schema of Zod, Valibot, ArkType or another of Standard Schema',
    byDefault: null,
    alias: ['schema', 'input', 'payload'],
    read: (given) => (isParamsSchema(given) ? given : new Refusal()),
  },
  work: {
    allowed: 'an async function',
    alias: ['handler', 'run', 'task', 'function', 'execute'],
    read: (given) => (isFunction<Job['work']>(given) ? given : new Refusal()),
  },
};

interface Placement {
  readonly at: Schedule;
  readonly timeZone: string | null;
  readonly flexibleMinutes: number | null;
  readonly start: Date | null;
  readonly end: Date | null;
  readonly enabled: boolean;
}

const instant: Option<Date | null> = {
  allowed: 'a time in ISO 8601 with its zone, in the years 1970 to 2199, such as 2027-01-01T00:00:00Z',
  byDefault: null,
  read: (given) => instantOf(given) ?? new Refusal(),
};

/** The options of a schedule. */
export const scheduleOptions: Options<Placement> & Record<keyof ScheduleOptions, unknown> = {
  at: {
    allowed: 'cron(…) or rate(…), as AWS writes them',
    alias: ['cron', 'rate', 'expression', 'schedule', 'pattern'],
    read: (given, place) =>
      typeof given === 'string' ? asked(place, () => parseSchedule(given)) : new Refusal(),
  },
  timeZone: {
    allowed: 'an IANA name, such as Europe/Berlin',
    byDefault: null,
    alias: ['tz', 'zone', 'location'],
    read: (given, place) =>
      typeof given === 'string' ? asked(place, () => (checkTimeZone(given), given)) : new Refusal(),
  },
  flexibleMinutes: { ...whole(1, 1_440, null), alias: ['flexibleTimeWindow', 'windowMinutes', 'jitter'] },
  start: { ...instant, alias: ['startDate', 'from', 'notBefore', 'after'] },
  end: { ...instant, alias: ['endDate', 'until', 'notAfter', 'before'] },
  enabled: { ...flag(true), alias: ['disabled', 'state'] },
};

/**
 * Declares a job; its options are checked here and now.
 * @throws {JobError} naming the option, what was given and what is allowed
 */
export function defineJob<P = Json>(options: JobOptions<P>): Job {
  const job = declareJob(options);
  const own = reservedNames.get(job.name);
  if (own !== undefined)
    throw new JobError(
      `job "${job.name}": name is "${job.name}", which is the name of ${own}; choose another`,
    );
  return job;
}

/** As {@link defineJob}, for Cronce's own jobs too. */
export function declareJob<P = Json>(options: JobOptions<P>): Job {
  const owner = ownerOf(options);
  const { schedule, lock, ...decided } = readOptions<Decided>(jobOptions, options, { owner, path: '' });
  const job: Job = {
    ...decided,
    schedules: schedule,
    lock: lock ?? decided.name,
    ownLocks: new Set<string>(),
    work: withParams(decided),
  };
  demandTogether(job, lock !== null, (path, given, allowed) => refusal({ owner, path }, given, [allowed]));
  return job;
}

/** By its own run too, since an event comes from anywhere. */
function withParams({ params: schema, work }: Pick<Job, 'params' | 'work'>): Job['work'] {
  if (schema === null) return work;
  return async (context) => {
    const params = await demandParams(schema, context.params);
    return work({ ...context, params: params as Json }); // of the schema's output type, which the work declares
  };
}

/** How messages call a job whose options may be anything yet. */
function ownerOf(options: unknown): string {
  try {
    const name = (options as Partial<JobOptions> | null | undefined)?.name;
    if (name === undefined) return 'a job without a name';
    return isJobName(name) ? `job ${JSON.stringify(name)}` : `job ${show(name)}`;
  } catch {
    return 'a job whose name can’t be read';
  }
}

function isJobName(given: unknown): given is string {
  return typeof given === 'string' && /^[a-z][a-z0-9-]{0,39}$/.test(given);
}

/** A generator's body is never entered by calling it. */
function isFunction<F>(given: unknown): given is F {
  return typeof given === 'function' && !Object.prototype.toString.call(given).includes('GeneratorFunction');
}

type Refuse = (option: keyof JobOptions, given: unknown, allowed: string) => JobError;

/** What each option allows by itself, but not beside another. */
function demandTogether(job: Job, hasLock: boolean, refuse: Refuse): void {
  const { overlap, places, lock, leaseMs, lockDelayMs } = job;
  if (overlap === 'allow' && (hasLock || places > 1))
    throw refuse('overlap', overlap, 'without lock and places, since each slot then has a lock of its own');
  if (typeof lock === 'bigint' && places > 1)
    throw refuse('places', places, 'only 1 where lock is an integer');
  if (leaseMs !== null && isTooShort(lockDelayMs, leaseMs))
    throw refuse('lockDelayMs', lockDelayMs, `0, or at least the lease, which is ${leaseMs}`);
  if (job.schedules.length > 0 && job.params !== null && refusesNone(job.params))
    throw refuse('params', job.params, 'beside a schedule, one that does without params: give it a default');
}

/** A delay that ends while a cut-off holder may still work is of no use, and looks as if it were. */
export function isTooShort(lockDelayMs: number | null, leaseMs: number): boolean {
  return lockDelayMs !== null && lockDelayMs > 0 && lockDelayMs < leaseMs;
}

function isScheduleLike(given: unknown): given is string | object {
  return typeof given === 'string' || (typeof given === 'object' && given !== null);
}

function readSchedule(given: unknown, place: Place): JobSchedule {
  if (!isScheduleLike(given)) throw refusal(place, given, [jobOptions.schedule.allowed]);
  const options = typeof given === 'string' ? { at: given } : given;
  const inside = { ...place, path: `${place.path}.` };
  const { at, timeZone, ...rest } = readOptions<Placement>(scheduleOptions, options, inside);
  const isRule = [timeZone, rest.flexibleMinutes, rest.start, rest.end].every((option) => option === null);
  const schedule: JobSchedule = {
    schedule: at,
    timeZone: timeZone ?? 'UTC',
    // A rule knows neither zone nor window, start or end.
    via: isRule ? 'rule' : 'scheduler',
    ...rest,
  };
  demandDue(schedule, place);
  return schedule;
}

function demandDue(schedule: JobSchedule, place: Place): void {
  const { start, end } = schedule;
  if (start !== null && end !== null && end <= start)
    throw refusal({ ...place, path: `${place.path}.end` }, end.toISOString(), [
      `a time after the start, which is ${start.toISOString()}`,
    ]);
  if (isDueAfter(schedule, firstDeclared)) return;
  const when =
    start === null && end === null ? 'it never falls due' : 'it never falls due between start and end';
  throw refusal(place, schedule.schedule.expression, [`a schedule that falls due; ${when}`]);
}

/** Whether any occurrence is left after an instant, within the schedule's start and end. */
export function isDueAfter({ schedule, timeZone, start, end }: JobSchedule, after: Date): boolean {
  // An occurrence right at the start is one.
  const from = start !== null && start > after ? new Date(start.getTime() - 1) : after;
  if (schedule.kind === 'cron') return fallsDue(schedule, from, end, timeZone);
  return end === null || from <= end;
}

/** What AWS would refuse in a schedule; that error names the part itself. */
function asked<T>({ owner, path }: Place, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof ScheduleError)
      throw new JobError(`${owner}: ${path.replace(/\.\w+$/, '')}: ${error.message}`, { cause: error });
    throw error;
  }
}

/** The jobs of a deployment, by name. */
export type Registry = ReadonlyMap<string, Job>;

/** Names of functions that each deployment has beside those of its jobs. */
const reservedNames: ReadonlyMap<string, string> = new Map([
  ['sweep', 'the sweep'],
  ['http', 'the HTTP entry'],
]);

/**
 * The jobs of a deployment.
 * @throws {JobError} if two have one name, one has a name of Cronce's own, or the locks of two come to one key
 */
export function defineJobs(jobs: readonly Job[]): Registry {
  const registry = new Map<string, Job>();
  for (const job of listOf(jobs)) {
    const own = reservedNames.get(job.name);
    if (own !== undefined)
      throw new JobError(
        `a job is named ${JSON.stringify(job.name)}, which is the name of ${own}; rename it`,
      );
    if (registry.has(job.name))
      throw new JobError(`two jobs are named ${JSON.stringify(job.name)}; rename one`);
    registry.set(job.name, job);
  }
  const ownLocks = new Set(jobs.filter(({ name, lock }) => lock === name).map(({ name }) => name));
  for (const job of jobs) if (mayShare(job, ownLocks)) registry.set(job.name, { ...job, ownLocks });
  checkLocks(registry);
  return registry;
}

/** What a lock function will answer is not known yet. */
function mayShare({ name, lock }: Job, ownLocks: ReadonlySet<string>): boolean {
  return typeof lock === 'function' || (typeof lock === 'string' && lock !== name && ownLocks.has(lock));
}

/** A registry is easily given what is no job yet: the options of one, or what a file happens to export. */
function listOf(jobs: unknown): readonly Job[] {
  if (!Array.isArray(jobs)) throw new JobError(`defineJobs was given ${show(jobs)}; allowed: a list of jobs`);
  return jobs.map((job: Partial<Job> | null | undefined, index) => {
    if (!isJobName(job?.name) || !Array.isArray(job.schedules))
      throw new JobError(
        `defineJobs was given ${show(job)} as number ${index + 1}; allowed: what defineJob answers`,
      );
    return job as Job;
  });
}
