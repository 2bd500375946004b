import type { Transaction, WorkContext } from '../job.ts';
import type { Session } from '../postgres/session.ts';
import type { Logger, RunRecord } from '../run.ts';
import { Stop, type WorkResult } from './ending.ts';
import { inFence } from './fenced.ts';
import { owningStrays } from './strays.ts';
import { WorkIsOver, WorkTransaction } from './transaction.ts';

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
  const timeLeftMs = () => endsAt - performance.now();
  const expire = () => {
    deadline.abort(new Stop('deadline', `the run's time of ${Math.round(timeMs)} ms is over`));
  };
  const timer = setTimeout(expire, timeMs);
  try {
    const reach = { tx, signal, ended: ended.signal, timeLeftMs };
    const working = start(options, tx, contextOf(run, options, reach)).then((result) => {
      // The time decides: a busy process may hear of a statement's own limit, which ends with it, before its timer.
      if (result.kind === 'threw' && timeLeftMs() <= 0) expire();
      return result;
    });
    return await orCutOff(working, signal, options.graceMs);
  } finally {
    clearTimeout(timer);
    ended.abort(new WorkIsOver(`run ${run.id} has ended`));
  }
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
  readonly timeLeftMs: () => number;
}

function contextOf(run: RunRecord, options: WorkOptions, reach: Reach): WorkContext {
  const { tx, signal, ended, timeLeftMs } = reach;
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
    timeLeftMs,
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
  return inFence({ ...reach, run, pid, openSession, signal }, async (session, over) => {
    const tx = new WorkTransaction(session, () =>
      over.aborted ? new WorkIsOver('the fenced transaction has ended') : refusal(reach.signal, reach.ended),
    );
    const value = await settled(tx, body);
    await leaveNothing(options, tx, true);
    return value;
  });
}

function refusal(stopped: AbortSignal, ended: AbortSignal): Error | undefined {
  if (ended.aborted) return ended.reason as WorkIsOver;
  if (!stopped.aborted) return undefined;
  const stop = stopped.reason as Stop;
  return new WorkIsOver(`the work was told to stop: ${stop.message}`, { cause: stop });
}
