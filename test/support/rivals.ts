/** Runs that contend for one lock: who vouched for it and when, what cuts them off or ends them, and who comes next. */
import { fork } from 'node:child_process';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { cancelRun } from '../../src/path/cancel.ts';
import { coordinate, type Coordinator } from '../../src/coordinate.ts';
import { defineJob, defineJobs, type Job, type JobOptions, type WorkContext } from '../../src/job.ts';
import { lockKey } from '../../src/lock-name.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';
import { sweepJob, type SweepOptions } from '../../src/sweep/sweep.ts';
import { deliveryOf, type Delivery } from '../../src/path/trigger.ts';
import { setPlain } from './bed.ts';
import { coordinatorOn, deliveryFor, keepingLogger, targetOf } from './coordinator.ts';
import type { TestDatabase } from './database.ts';
import type { HolderOrder, HolderWord } from './holder.ts';
import { startProxy, type PartitionOptions } from './proxy.ts';

export const noon = '2026-11-29T12:00:00Z';
export const one = '2026-11-29T13:00:00Z';
export const two = '2026-11-29T14:00:00Z';
/** Short, and still long enough for a loaded machine: a holder of it beats each second and vouches for 2.25 s. */
export const leaseMs = 3_000;

let jobs = 0;

export function job(
  work: (context: WorkContext) => Promise<unknown>,
  options: Partial<JobOptions> = {},
): Job {
  return defineJob({ name: `job-${process.pid}-${++jobs}`, leaseMs, work, ...options });
}

export interface DeliverOptions {
  readonly delivery?: Partial<Delivery>;
  readonly coordinator?: Partial<Coordinator>;
  readonly timeLeftMs?: number;
}

export async function deliver(
  url: string,
  task: Job,
  slot: string,
  { delivery, coordinator, timeLeftMs = 120_000 }: DeliverOptions = {},
): Promise<RunRecord> {
  return coordinate(deliveryFor(task, slot, delivery), timeLeftMs, coordinatorOn(url, coordinator));
}

/** Looks again and again, until there is something to see. */
export async function until<T>(look: () => T | Promise<T>, limitMs = 25_000): Promise<NonNullable<T>> {
  const deadline = performance.now() + limitMs;
  for (;;) {
    const seen = await look();
    if (seen !== undefined && seen !== null && seen !== false) return seen;
    if (performance.now() > deadline) throw new Error(`in vain for ${limitMs} ms: ${look.toString()}`);
    await delay(10);
  }
}

/** When check() passed, of each run: at those times it acted, or might have. */
export class Passes {
  readonly #times = new Map<string, number[]>();

  /** To be called right behind check(), without an `await` in between. */
  note(run: string, at = Date.now()): void {
    this.#times.set(run, [...(this.#times.get(run) ?? []), at]);
  }

  of(run: string): readonly number[] {
    return this.#times.get(run) ?? [];
  }

  first(run: string): number {
    return this.of(run)[0] ?? NaN;
  }

  last(run: string): number {
    return this.of(run).at(-1) ?? NaN;
  }

  /** Each pair of runs that vouched for one lock at the same time, and for how long. Empty is right. */
  together(): string[] {
    const runs = [...this.#times.keys()].sort((a, b) => this.first(a) - this.first(b));
    return runs.flatMap((a, index) =>
      runs
        .slice(index + 1)
        .filter((b) => this.first(b) <= this.last(a))
        .map((b) => `${a} and ${b} for ${this.last(a) - this.first(b)} ms`),
    );
  }
}

/** Work that vouches for itself every 20 ms: for good where the params say `stay`, else ten times. */
export function vouching(passes: Passes): (context: WorkContext) => Promise<string> {
  return async ({ check, params, slot, attempt }) => {
    for (let n = 0; n < 10 || params === 'stay'; n++) {
      check();
      passes.note(`${slot}/${attempt}`);
      await delay(20);
    }
    return 'done';
  };
}

export interface CutOff {
  /** What became of its delivery; an error where its outcome could not be recorded. */
  readonly end: Promise<RunRecord | Error>;
  readonly runId: string;
  cutOff(options?: PartitionOptions): void;
  /** Ends its way to the server, and waits for its delivery. */
  stop(): Promise<RunRecord | Error>;
}

/** A delivery that reaches the server by a way of its own, once its work has begun. */
export async function startFarHolder(
  db: TestDatabase,
  task: Job,
  slot: string,
  options: DeliverOptions & { readonly port?: number } = {},
): Promise<CutOff> {
  const proxy = await startProxy({ targetPort: options.port ?? Number(new URL(db.url).port) });
  let begun: (runId: string) => void = () => undefined;
  const runIdOf = new Promise<string>((resolve) => (begun = resolve));
  const work: Job['work'] = async (context) => {
    begun(context.runId);
    return task.work(context);
  };
  const delivery = { params: 'stay', ...options.delivery };
  const end = deliver(proxy.url(db.url), { ...task, work }, slot, { ...options, delivery }).catch(asError);
  const runId = await Promise.race([
    runIdOf,
    end.then((over) => Promise.reject(new Error(`it ended before its work: ${JSON.stringify(over)}`))),
  ]);
  return {
    end,
    runId,
    cutOff: (how = {}) => {
      proxy.partition({ newConnections: 'hang', ...how });
    },
    async stop() {
      await proxy.stop();
      return end;
    },
  };
}

export function asError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown));
}

export async function withSession<T>(url: string, body: (session: Session) => Promise<T>): Promise<T> {
  const session = await Session.open(targetOf(url));
  try {
    return await body(session);
  } finally {
    await session.close();
  }
}

export async function cancel(
  db: TestDatabase,
  runId: string,
  graceMs: number,
): Promise<RunRecord | undefined> {
  return withSession(db.url, (session) => cancelRun(session, runId, { by: 'ann', graceMs }));
}

/** As a DBA ends a backend that is in his way. */
export async function endBackend(db: TestDatabase, runId: string): Promise<void> {
  await db.query('SELECT pg_terminate_backend(backend_pid) FROM cronce.run WHERE id = $1', [runId]);
}

/** Once nobody holds a lock, when. */
export async function freeAt(db: TestDatabase, key: bigint): Promise<number> {
  const held = `SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND (classid::bigint << 32) | objid::bigint = $1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`;
  await until(async () => (await db.query(held, [key.toString()])).length === 0);
  return Date.now();
}

export async function untilFree(db: TestDatabase, task: Job): Promise<void> {
  await freeAt(db, lockKey(typeof task.lock === 'string' ? task.lock : task.name));
}

export async function recordsOf(db: TestDatabase, task: Pick<Job, 'name'>, slot?: string) {
  return db.query(`SELECT * FROM cronce.run WHERE job = $1 AND ($2::text IS NULL OR slot = $2) ORDER BY id`, [
    task.name,
    slot ?? null,
  ]);
}

/** The run of a job that has entered its lock, and is not in the middle of a statement. */
export async function insideId(db: TestDatabase, task: Job, slot?: string): Promise<string> {
  const inside = `SELECT r.id FROM cronce.run r JOIN pg_stat_activity a ON a.pid = r.backend_pid
    WHERE r.job = $1 AND ($2::text IS NULL OR r.slot = $2) AND r.status = 'running'
      AND a.state = 'idle in transaction' AND cronce.holds(r.backend_pid, r.lock_key)`;
  const found = await until(async () => (await db.query(inside, [task.name, slot ?? null]))[0]);
  return String(found['id']);
}

/** A session of the tests' own, whatever the database has as its defaults. */
export async function connectPlain(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url, ssl: false });
  client.on('error', () => undefined);
  await client.connect();
  await setPlain(client);
  return client;
}

/** Backends that are in the middle of a query with all of these words. */
export async function inTheMiddleOf(
  db: TestDatabase,
  words: readonly string[],
  waitsFor = '%',
): Promise<unknown[]> {
  return db.query(
    `SELECT pid, query_start FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'
       AND query LIKE ALL ($1) AND coalesce(wait_event_type, '') LIKE $2 AND pid <> pg_backend_pid()`,
    [words.map((word) => `%${word}%`), waitsFor],
  );
}

/** A claim of this slot that finds its lock held and waits, or the wait that some other query is in. */
export async function untilWaiting(db: TestDatabase, ...words: string[]): Promise<void> {
  await until(async () => (await inTheMiddleOf(db, words)).length > 0);
}

/** Until a query with all of these words waits for another's lock. */
export async function untilBlocked(db: TestDatabase, ...words: string[]): Promise<void> {
  await until(async () => (await inTheMiddleOf(db, words, 'Lock')).length > 0);
}

let sweeps = 0;

/** One pass of a sweep over these jobs; what it delivers runs in place. Answers those runs, and the sweep's own. */
export async function sweep(
  db: TestDatabase,
  registered: readonly Job[],
  overrides: Partial<SweepOptions> = {},
): Promise<{ runs: RunRecord[]; own: RunRecord }> {
  const runs: RunRecord[] = [];
  const registry = defineJobs(registered);
  const { clock, deployment, logger = keepingLogger() } = overrides;
  const coordinator = coordinatorOn(db.url, {
    logger,
    ...(clock ? { clock } : {}),
    ...(deployment === undefined ? {} : { deployment }),
  });
  const now = clock?.() ?? new Date();
  const task = sweepJob({
    registry,
    deliver: async (request) => {
      const delivery = deliveryOf(request, { registry, ownJob: null, deliveryId: null, now });
      runs.push(await coordinate(delivery, 120_000, coordinator));
    },
    openSession: async () => Session.open(targetOf(db.url)),
    sinks: [],
    timeoutMs: 2_000,
    retentionMs: 30 * 24 * 3_600_000,
    logger: coordinator.logger,
    ...overrides,
  });
  const byHand = { slot: `manual:${process.pid}-${++sweeps}`, byHand: true };
  const own = await coordinate(deliveryFor(task, now, byHand), 120_000, coordinator);
  return { runs, own };
}

export interface Holder {
  readonly words: readonly HolderWord[];
  /** The first word of this kind, waited for. */
  said<K extends HolderWord['kind']>(kind: K): Promise<Extract<HolderWord, { kind: K }>>;
  kill(): void;
}

/** A delivery in a process of its own, to be blocked or killed. */
export function startHolder(order: HolderOrder): Holder {
  const words: HolderWord[] = [];
  const child = fork(fileURLToPath(new URL('holder.ts', import.meta.url)), [JSON.stringify(order)], {
    execArgv: ['--import', 'tsx'],
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  child.on('message', (word) => words.push(word as HolderWord));
  return {
    words,
    said: async <K extends HolderWord['kind']>(kind: K) =>
      until(() => words.find((word): word is Extract<HolderWord, { kind: K }> => word.kind === kind)),
    kill: () => void child.kill('SIGKILL'),
  };
}
