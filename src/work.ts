import type { QueryConfig, QueryResult, QueryResultRow } from './postgres/driver.ts';
import type { Transaction, WorkContext } from './job.ts';
import type { Session } from './postgres/session.ts';
import type { Logger, RunRecord } from './run.ts';
import { Stop, type WorkResult } from './ending.ts';
import { inFence } from './fenced.ts';

/**
 * This step's secret: what a job's function may touch, until when, and how it is cut off.
 */

export interface WorkOptions {
  readonly run: RunRecord;
  readonly work: (context: WorkContext) => Promise<unknown>;
  readonly session: Session;
  /** The backend of `session`. */
  readonly pid: number;
  /** Aborts, and throws, once the lock can no longer be vouched for. */
  readonly lock: { readonly signal: AbortSignal; check(): void };
  /** Time left for the work, ms. */
  readonly timeMs: number;
  /** How long work that was told to stop may take to end by itself, ms. */
  readonly graceMs: number;
  /** Lock delay: how long to wait before the work begins, ms. `timeMs` begins after it. */
  readonly restMs: number;
  readonly logger: Logger;
  readonly openSession: () => Promise<Session>;
}

/** Runs the work under its lock, to its own end or to the moment at which it must stop. Never throws. */
export async function performWork(options: WorkOptions): Promise<WorkResult> {
  const { lock, timeMs, run } = options;
  const deadline = new AbortController();
  const signal = AbortSignal.any([lock.signal, deadline.signal]);
  const ended = new AbortController();
  const tx = new WorkTransaction(options.session, () => refusal(signal, ended.signal));
  // A delayed run has the lock and beats, but its time begins with its work.
  if (options.restMs > 0) await waitFor(options.restMs, lock.signal);
  const endsAt = performance.now() + timeMs;
  const timer = setTimeout(() => {
    deadline.abort(new Stop('deadline', `the run's time of ${Math.round(timeMs)} ms is over`));
  }, timeMs);
  try {
    const reach = { tx, signal, ended: ended.signal, timeLeftMs: () => endsAt - performance.now() };
    const working = start(options.work, contextOf(run, options, reach));
    return await orCutOff(working, signal, options.graceMs);
  } finally {
    clearTimeout(timer);
    ended.abort(new WorkIsOver(`run ${run.id} has ended`));
  }
}

async function start(work: WorkOptions['work'], context: WorkContext): Promise<WorkResult> {
  try {
    context.signal.throwIfAborted();
    return { kind: 'returned', value: await work(context) };
  } catch (error) {
    return { kind: 'threw', error };
  }
}

/** A stop decides, even over work that returned after it: what it did was no longer covered. */
async function orCutOff(
  working: Promise<WorkResult>,
  signal: AbortSignal,
  graceMs: number,
): Promise<WorkResult> {
  const done = new AbortController();
  const stopped = waitFor(Infinity, AbortSignal.any([signal, done.signal]));
  const first = await Promise.race([working, stopped]);
  if (!signal.aborted) {
    done.abort();
    return first as WorkResult;
  }
  const last = await Promise.race([working, waitFor(graceMs, done.signal)]);
  done.abort();
  return { kind: 'stopped', stop: signal.reason as Stop, cutOff: last === undefined };
}

/** Resolves after so many ms, or when the signal aborts. */
async function waitFor(ms: number, signal: AbortSignal): Promise<undefined> {
  if (signal.aborted) return;
  await new Promise<void>((resolve) => {
    const timer = ms === Infinity ? undefined : setTimeout(resolve, ms);
    signal.addEventListener(
      'abort',
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
}

interface Reach {
  readonly tx: Transaction;
  readonly signal: AbortSignal;
  readonly ended: AbortSignal;
  readonly timeLeftMs: () => number;
}

function contextOf(run: RunRecord, options: WorkOptions, reach: Reach): WorkContext {
  const { tx, signal, ended } = reach;
  const check = () => {
    options.lock.check();
    ended.throwIfAborted();
    signal.throwIfAborted();
  };
  return {
    job: run.job,
    slot: run.slot,
    runId: run.id,
    scheduledFor: new Date(run.scheduledFor),
    attempt: run.attempt ?? 1,
    params: run.params,
    logger: options.logger,
    tx,
    signal,
    check,
    fenced: (body) => fenced(run, options, { ...reach, check }, body),
    fence: BigInt(run.fence ?? 0),
    idempotencyKey: `${run.job}/${run.slot}`,
  };
}

/** A transaction of its own beside the lock's, as the job sees it. */
async function fenced<T>(
  run: RunRecord,
  options: WorkOptions,
  reach: Reach & { readonly check: () => void },
  body: (tx: Transaction) => Promise<T>,
): Promise<T> {
  const { pid, openSession } = options;
  const signal = AbortSignal.any([reach.signal, reach.ended]);
  return inFence({ ...reach, run, pid, openSession, signal }, async (session, over) =>
    body(
      new WorkTransaction(session, () =>
        over.aborted
          ? new WorkIsOver('the fenced transaction has ended')
          : refusal(reach.signal, reach.ended),
      ),
    ),
  );
}

function refusal(stopped: AbortSignal, ended: AbortSignal): Error | undefined {
  if (ended.aborted) return ended.reason as WorkIsOver;
  if (!stopped.aborted) return undefined;
  const stop = stopped.reason as Stop;
  return new WorkIsOver(`the work was told to stop: ${stop.message}`, { cause: stop });
}

/** A transaction was used after its work had ended or was told to stop. Nothing was sent. */
export class WorkIsOver extends Error {
  override readonly name = 'WorkIsOver';
}

/** A statement that would end, split or stall the lock's transaction. Nothing was sent. */
export class ForbiddenStatement extends Error {
  override readonly name = 'ForbiddenStatement';
}

class WorkTransaction implements Transaction {
  readonly #session: Session;
  readonly #refusal: () => Error | undefined;

  constructor(session: Session, refusal: () => Error | undefined) {
    this.#session = session;
    this.#refusal = refusal;
  }

  async query<Row extends QueryResultRow>(
    query: string | QueryConfig,
    values?: readonly unknown[],
  ): Promise<QueryResult<Row>> {
    demandPermitted(query);
    const refused = this.#refusal();
    if (refused) throw refused;
    const alone = mightBeSeveral(query, values);
    return (await this.#session.query(query, values && [...values], { alone })) as QueryResult<Row>;
  }

  async connect(): Promise<Transaction & { release(): void }> {
    return { query: this.query.bind(this), connect: this.connect.bind(this), release: () => undefined };
  }
}

const forbidden: Readonly<Record<string, string>> = {
  begin: 'the work runs in the lock’s own transaction',
  start: 'the work runs in the lock’s own transaction',
  commit: 'returning from the work commits',
  end: 'returning from the work commits',
  rollback: 'throwing from the work rolls back',
  abort: 'throwing from the work rolls back',
  savepoint: 'the work already runs inside one',
  release: 'the savepoint around the work is the coordinator’s',
  prepare: 'a prepared statement or transaction would outlive the run',
  copy: 'COPY stalls the heartbeat; insert from an array with unnest',
  listen: 'the connection ends with the run',
  discard: 'the connection may be shared by a pooler',
};

/**
 * Statements go one at a time, so the server refuses what a leading keyword would hide. The keyword is looked for
 * behind comments; a text that begins with neither keyword nor bracket is refused with them.
 */
function demandPermitted(query: string | QueryConfig): void {
  if (typeof query === 'object' && 'submit' in query)
    throw new ForbiddenStatement(
      'cursors and streams are not for tx: a result that nobody reads stalls the heartbeat',
    );
  const text = textOf(query);
  const keyword = /^(?:\s|--[^\n]*(?:\n|$)|\/\*[\s\S]*?\*\/)*([a-z]+|\(|$)/i.exec(text)?.[1]?.toLowerCase();
  if (keyword === undefined) throw new ForbiddenStatement('a statement begins with a keyword');
  const reason = Object.hasOwn(forbidden, keyword) ? forbidden[keyword] : undefined;
  if (reason !== undefined) throw new ForbiddenStatement(`${keyword.toUpperCase()} is not for tx: ${reason}`);
  if (/^(set|reset)$/.test(keyword) && !/\bset\s+(local|constraints)\b/i.test(text))
    throw new ForbiddenStatement('SET without LOCAL would leak to the next user of a pooled connection');
}

/** With parameters the drivers send one statement anyway. */
function mightBeSeveral(query: string | QueryConfig, values: readonly unknown[] | undefined): boolean {
  const bound = values ?? (typeof query === 'object' ? query.values : undefined) ?? [];
  return bound.length === 0 && textOf(query).trim().replace(/;$/, '').includes(';');
}

function textOf(query: string | QueryConfig): string {
  return typeof query === 'string' ? query : query.text;
}
