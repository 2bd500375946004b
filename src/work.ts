import type { Transaction, WorkContext } from './job.ts';
import { answerOf } from './postgres/record.ts';
import type { Session } from './postgres/session.ts';
import type { Logger, RunRecord } from './run.ts';
import { Stop, type WorkResult } from './ending.ts';
import { owningStrays } from './strays.ts';
import { WorkIsOver, WorkTransaction } from './transaction.ts';

/**
 * This step's secret: what a job's function may touch, until when, and how it is cut off.
 */

export interface WorkOptions {
  readonly run: RunRecord;
  readonly work: (context: WorkContext) => Promise<unknown>;
  readonly session: Session;
  /** Aborts, and throws, once the lock can no longer be vouched for. */
  readonly lock: { readonly signal: AbortSignal; check(): void };
  /** Time left for the work, ms. */
  readonly timeMs: number;
  /** How long work that was told to stop may take to end by itself, ms. */
  readonly graceMs: number;
  /** After a server restart: how long to wait before the work begins, ms. */
  readonly restMs: number;
  readonly logger: Logger;
  readonly openSession: () => Promise<Session>;
}

/** Runs the work under its lock, to its own end or to the moment at which it must stop. Never throws. */
export async function performWork(options: WorkOptions): Promise<WorkResult> {
  const { lock, timeMs, run } = options;
  const deadline = new AbortController();
  const timer = setTimeout(() => {
    deadline.abort(new Stop('deadline', `the run's time of ${Math.round(timeMs)} ms is over`));
  }, timeMs);
  const signal = AbortSignal.any([lock.signal, deadline.signal]);
  const ended = new AbortController();
  const tx = new WorkTransaction(options.session, () => refusal(signal, ended.signal));
  try {
    await rest(options.restMs, signal);
    const working = start(options, tx, contextOf(run, options, { tx, signal, ended: ended.signal }));
    return await orCutOff(working, signal, options.graceMs);
  } finally {
    clearTimeout(timer);
    ended.abort(new WorkIsOver(`run ${run.id} has ended`));
  }
}

async function rest(restMs: number, signal: AbortSignal): Promise<void> {
  if (restMs > 0 && !signal.aborted) await waitFor(restMs, signal);
}

async function start(options: WorkOptions, tx: WorkTransaction, context: WorkContext): Promise<WorkResult> {
  try {
    context.signal.throwIfAborted();
    const { run, logger } = options;
    const told = { logger, about: { runId: run.id, job: run.job } };
    const value = await owningStrays(told, async () => settled(tx, async () => options.work(context)));
    await leaveNothing(options, tx, true);
    return { kind: 'returned', value };
  } catch (error) {
    await leaveNothing(options, tx, false).catch(() => undefined); // the work's own error is the one to tell
    return { kind: 'threw', error };
  }
}

async function settled<T>(tx: WorkTransaction, body: (tx: Transaction) => Promise<T>): Promise<T> {
  const value = await body(tx);
  await tx.settle();
  return value;
}

async function leaveNothing({ run, logger }: WorkOptions, tx: WorkTransaction, kept: boolean): Promise<void> {
  const left = await tx.undoLeftovers({ kept, leaseMs: run.leaseMs ?? 0 });
  if (left.length === 0) return;
  logger.warn(`the work left on the session, behind its transaction: ${left.join('; ')}`, {
    runId: run.id,
    job: run.job,
    left,
  });
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
}

function contextOf(run: RunRecord, options: WorkOptions, { tx, signal, ended }: Reach): WorkContext {
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
    fenced: (body) => fenced(run, options, check, body),
    fence: BigInt(run.fence ?? 0),
    idempotencyKey: `${run.job}/${run.slot}`,
  };
}

/**
 * A transaction of its own that commits only while this run's fence is the lock's last. The fence's row is held
 * `FOR SHARE` in it, and a successor must change that row to claim: it can't begin in between. The session carries
 * the lease too, so a frozen one is in a successor's way for one lease at most.
 */
async function fenced<T>(
  run: RunRecord,
  options: WorkOptions,
  check: () => void,
  body: (tx: Transaction) => Promise<T>,
): Promise<T> {
  check();
  const session = await options.openSession();
  try {
    await openFenced(session, run, options.timeMs);
    const over = new AbortController();
    const tx = new WorkTransaction(session, () => refusal(options.lock.signal, over.signal));
    const value = await settled(tx, body).finally(() => {
      over.abort(new WorkIsOver('the fenced transaction has ended'));
    });
    check();
    await leaveNothing(options, tx, true);
    await commit(session, run.leaseMs ?? 0);
    return value;
  } finally {
    await session.close();
  }
}

async function openFenced(session: Session, run: RunRecord, timeMs: number): Promise<void> {
  const leaseMs = run.leaseMs ?? 0;
  const results = await session.send(
    [
      'BEGIN ISOLATION LEVEL READ COMMITTED',
      `SELECT set_config('idle_in_transaction_session_timeout', '${leaseMs}', true)` +
        `, set_config('statement_timeout', '${Math.max(1, Math.ceil(timeMs))}', true)`,
      `SELECT cronce.demand_fence(${run.lockKey ?? 'NULL'}, ${run.fence ?? 'NULL'}) AS current`,
    ].join('; '),
  );
  if (answerOf<boolean>(results, 'current')) return;
  throw new Stop(
    'lock_lost',
    `fence ${run.fence} is no longer the last of lock ${JSON.stringify(run.lockName)}`,
  );
}

/** Bounded by the lease: when the server has not answered by then, it has ended the transaction, or committed it. */
async function commit(session: Session, leaseMs: number): Promise<void> {
  const answers = await session.send('COMMIT', leaseMs);
  if (answers.at(-1)?.command !== 'COMMIT')
    throw new Error('the fenced transaction was rolled back: an SQL error in it had been swallowed');
}

function refusal(stopped: AbortSignal, ended: AbortSignal): Error | undefined {
  if (ended.aborted) return ended.reason as WorkIsOver;
  if (!stopped.aborted) return undefined;
  const stop = stopped.reason as Stop;
  return new WorkIsOver(`the work was told to stop: ${stop.message}`, { cause: stop });
}
