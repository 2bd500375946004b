import { createHash } from 'node:crypto';
import { types } from 'node:util';
import { isStorable } from './capture.ts';
import { JobError, show } from './options.ts';
import { unnamedDeployment, type Json } from './run.ts';

/**
 * This module's secret: what a lock is called, and which advisory lock keys that comes to. How a lock is held is the
 * matter of lock.ts; here nothing is asked of a database.
 */

/** What a job says of its lock. */
export interface Locking {
  readonly name: string;
  readonly lock: LockChoice;
  readonly places: number;
  readonly overlap: 'skip' | 'wait' | 'replace' | 'allow';
  /** It is the own lock of a job of the same registry, this one or another that names it. */
  readonly ownLocks: ReadonlySet<string>;
}

export type LockChoice = string | bigint | ((params: Json) => string | bigint);

/** A lock function that threw, or answered what names no lock. The run fails; another attempt would be no better. */
export class LockNameError extends JobError {
  override readonly name: string = 'LockNameError';
  readonly job: string;

  constructor(job: string, problem: string, options?: ErrorOptions) {
    super(`job ${JSON.stringify(job)}: its lock function ${problem}`, options);
    this.job = job;
  }
}

const namespace = 'cronce';
const longestName = 200;

/** What names a lock, in words. */
export const lockWords = `a name of 1 to ${longestName} characters, without NUL and lone surrogates, or a signed 64-bit integer, such as 42n`;

/**
 * A lock's key: the first 8 bytes, big-endian, of SHA-256 over namespace and name, as signed 64-bit. In SQL:
 * `('x'||encode(substr(sha256(convert_to('cronce:'||name,'UTF8')),1,8),'hex'))::bit(64)::bigint`.
 * Never change it: during a rolling deployment old and new code would not exclude each other.
 */
export function lockKey(name: string): bigint {
  return createHash('sha256').update(`${namespace}:${name}`, 'utf8').digest().readBigInt64BE(0);
}

/** Whether a value names a lock. NUL can't be stored, and lone surrogates would all hash alike. */
export function isLockName(given: unknown): given is string | bigint {
  if (typeof given === 'bigint') return BigInt.asIntN(64, given) === given;
  if (typeof given !== 'string' || given.length < 1 || given.length > longestName) return false;
  return isStorable(given);
}

/** A JS number above 2^53 silently becomes another key, so none is taken. */
export function lockCure(given: unknown): string | undefined {
  if (typeof given === 'bigint') return 'it does not fit';
  if (typeof given !== 'number') return undefined;
  return Number.isSafeInteger(given)
    ? `write ${given + 0}n`
    : 'write an integer with an n behind it, such as 42n';
}

/** The keys a delivery runs under: one for each place of its lock, and a guard for its slot. */
export interface LockNames {
  readonly name: string;
  readonly keys: readonly bigint[];
  /** Keeps the deliveries of one slot apart, whatever their locks: a shared lock may change, a slot's never does. */
  readonly guard: bigint;
}

/**
 * A job's own lock, and the guards of its slots, belong to its deployment; a lock that is named on purpose is the
 * database's, so that services exclude each other.
 * @throws {LockNameError} where the job's lock function throws or names no lock
 */
export function lockOf(
  job: Locking,
  slot: string,
  params: Json,
  deployment: string = unnamedDeployment,
): LockNames {
  const ofSlot = scoped(`${job.name}@${slot}`, deployment);
  const guard = lockKey(ofSlot);
  if (job.overlap === 'allow') return { name: ofSlot, keys: [guard], guard };
  const own = typeof job.lock === 'function' ? lockByParams(job.name, job.lock, params) : job.lock;
  if (typeof own === 'bigint') return { name: `key ${own}`, keys: [own], guard };
  const name = own === job.name || job.ownLocks.has(own) ? scoped(own, deployment) : own;
  return { name, keys: placesOf(name, job.places), guard };
}

function scoped(name: string, deployment: string): string {
  return deployment === unnamedDeployment ? name : `${deployment}/${name}`;
}

function placesOf(name: string, places: number): bigint[] {
  return Array.from({ length: places }, (_, place) => lockKey(place === 0 ? name : `${name}#${place}`));
}

function lockByParams(job: string, lock: (params: Json) => unknown, params: Json): string | bigint {
  let named: unknown;
  try {
    named = lock(canonical(params));
  } catch (cause) {
    throw new LockNameError(job, 'threw; let it name a lock for any params, also for null', { cause });
  }
  if (isLockName(named)) return named;
  // Nobody else will hear of its failure, which would end the process.
  if (types.isPromise(named)) named.catch(() => undefined);
  const cure = [lockWords, lockCure(named), types.isPromise(named) ? 'it can’t be async' : undefined];
  throw new LockNameError(
    job,
    `answered ${show(named)}; allowed: ${cure.filter((word) => word !== undefined).join('; ')}`,
  );
}

/**
 * Params in one form: however a delivery orders their keys (PostgreSQL stores them in an order of its own), a lock that
 * is reckoned from them is the same. Frozen, since the work is given the same params.
 */
export function canonical(params: Json): Json {
  if (isList(params)) return Object.freeze(params.map(canonical));
  if (typeof params !== 'object' || params === null) return params === 0 ? 0 : params;
  const entries = Object.entries(params).sort(([one], [other]) => (one < other ? -1 : 1));
  return Object.freeze(Object.fromEntries(entries.map(([key, value]) => [key, canonical(value)])));
}

function isList(value: Json): value is readonly Json[] {
  return Array.isArray(value);
}

/**
 * Jobs share a lock by naming it alike, never by accident. Locks by params are known only when they are taken.
 * @throws {JobError} where two names come to one key, or a name is kept for the slots of a job
 */
export function checkLocks(jobs: ReadonlyMap<string, Locking>): void {
  const owners = new Map<bigint, { lock: string; job: string }>();
  for (const job of jobs.values()) {
    if (typeof job.lock === 'function' || job.overlap === 'allow') continue;
    demandNoSlot(job, job.lock, jobs);
    const { name: lock, keys } = lockOf(job, '', null);
    for (const key of keys) {
      const owner = owners.get(key);
      if (owner && owner.lock !== lock) throw oneKey(owner, { lock, job: job.name });
      owners.set(key, { lock, job: job.name });
    }
  }
}

interface Owner {
  readonly lock: string;
  readonly job: string;
}

function oneKey(one: Owner, other: Owner): JobError {
  const [first, second] = [one, other].map(({ lock, job }) => `${JSON.stringify(lock)} (job ${job})`);
  return new JobError(`locks ${first ?? ''} and ${second ?? ''} have one lock key; rename one`);
}

/** `report@…` are the guards of the slots of a job `report`. */
function demandNoSlot(job: Locking, lock: string | bigint, jobs: ReadonlyMap<string, Locking>): void {
  const [owner = '', ...slot] = typeof lock === 'string' ? lock.split('@') : [];
  if (slot.length > 0 && jobs.has(owner))
    throw new JobError(
      `job ${JSON.stringify(job.name)}: lock ${show(lock)} is kept for a slot of job ${owner}; rename it`,
    );
}
