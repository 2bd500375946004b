import {
  ConnectionLost,
  isServerError,
  NoLongerStanding,
  PostgresError,
  TransactionAborted,
} from '../postgres/errors.ts';
import { begin, call, limitsSql } from '../postgres/call.ts';
import { elapsedMs, type Moment } from '../postgres/moment.ts';
import { answerOf } from '../postgres/record.ts';
import type { Session } from '../postgres/session.ts';
import { Stop } from './ending.ts';
import type { RunRecord } from '../run.ts';

/**
 * This step's secret: how a small commit beside the lock's transaction is bound to its run.
 *
 * A fence is a run's, not a number's: the number alone would be accepted after a cancel, beside another place of the
 * lock, and after a failover that gave it out again. So the transaction shares an advisory lock of its run
 * (`cronce.fenced_key`), and whoever ends the run takes that lock alone: it waits for a commit under way, and ends by
 * force what does not end by itself. The run is looked at when the transaction begins and again with its COMMIT. The
 * session carries the lease too, so a frozen one is in nobody's way for longer.
 */
export interface FencedOptions {
  readonly run: RunRecord;
  /** The backend of the lock's own transaction. */
  readonly pid: number;
  readonly openSession: () => Promise<Session>;
  /** Aborts with the run: its fenced transactions end with it. */
  readonly signal: AbortSignal;
  /** @throws {Stop} once the lock can no longer be vouched for */
  readonly check: () => void;
  /** Until the run must end, ms. */
  readonly timeLeftMs: () => number;
}

/** A second session, which `fenced` needs beside the lock's, was not to be had. */
export class NoSecondSession extends PostgresError {
  override readonly name = 'NoSecondSession';
}

/** `fenced` waited for a row that `tx` of the same run has locked: neither could ever go on. */
export class FencedWaitsForTx extends PostgresError {
  override readonly name = 'FencedWaitsForTx';
}

/** How long a statement of `fenced` may take before it is asked what it waits for, ms. */
const suspiciousMs = 1_000;

/**
 * Runs `body` in a transaction on a session of its own, which commits only while this very run stands.
 * @throws {Stop} once it doesn't; nothing is committed then
 * @throws {NoSecondSession}
 * @throws {FencedWaitsForTx}
 */
export async function inFence<T>(
  options: FencedOptions,
  body: (session: Session, over: AbortSignal) => Promise<T>,
): Promise<T> {
  options.check();
  const session = await openBeside(options);
  const over = new AbortController();
  const end = () => {
    session.destroy(new ConnectionLost('the run has ended, and its fenced transaction with it'));
  };
  options.signal.addEventListener('abort', end);
  if (options.signal.aborted) end();
  let watch: ReturnType<typeof setInterval> | undefined;
  try {
    const pid = await beginFenced(session, options);
    watch = watchFor(session, async () => endIfStuck(session, pid, options));
    const value = await body(session, over.signal).finally(() => {
      over.abort();
    });
    options.check();
    await commit(session, options);
    return value;
  } catch (error) {
    throw whyLost(session, error);
  } finally {
    clearInterval(watch);
    options.signal.removeEventListener('abort', end);
    await session.close();
  }
}

async function openBeside({ openSession }: FencedOptions): Promise<Session> {
  return openSession().catch((cause: unknown) => {
    throw noSecond(cause instanceof Error ? cause.message : String(cause), cause);
  });
}

function noSecond(why: string, cause?: unknown): NoSecondSession {
  return new NoSecondSession(
    `fenced needs a second connection beside the lock's, and none was to be had (${why}): ` +
      'give the pool, the role or the server a place for two connections a run',
    { cause },
  );
}

async function beginFenced(session: Session, options: FencedOptions): Promise<number> {
  const { run, timeLeftMs } = options;
  const leaseMs = run.leaseMs ?? 0;
  const limitMs = Math.min(leaseMs, Math.max(1, timeLeftMs()));
  const sql = [
    begin,
    limitsSql({ statementMs: timeLeftMs(), lockMs: limitMs, idleMs: leaseMs }),
    `SELECT pg_catalog.json_build_object('stands', ${call(session, 'begin_fenced', run.id, leaseMs)},` +
      ` 'pid', pg_catalog.pg_backend_pid()) AS begun`,
    'SET LOCAL lock_timeout TO DEFAULT',
  ].join('; ');
  const results = await session.send(sql, limitMs).catch((cause: unknown) => {
    // Behind a pooler one connects at once, and waits for a place with the first message.
    if (cause instanceof ConnectionLost && !options.signal.aborted)
      throw noSecond(`no answer within ${Math.round(limitMs)} ms`, cause);
    throw cause;
  });
  const begun = answerOf<{ stands: boolean; pid: number }>(results, 'begun');
  if (begun.stands) return begun.pid;
  throw new Stop('lock_lost', `run ${run.id} no longer stands: fenced commits nothing`);
}

/**
 * Its constraints are checked as whoever the job has become, though not in whatever time it had allowed itself; the look at
 * the run, and the COMMIT, are ours. An error of the server's is the constraints': what it says is the job's to read.
 */
async function commit(session: Session, { run, timeLeftMs }: FencedOptions): Promise<void> {
  const sql = [
    `SET LOCAL statement_timeout = ${Math.max(1, Math.ceil(timeLeftMs()))}`,
    'SET CONSTRAINTS ALL IMMEDIATE',
    'SET LOCAL ROLE NONE',
    `SELECT ${call(session, 'demand_fence', run.id)} AS stands`,
    'COMMIT',
  ].join('; ');
  await session.send(sql, Math.max(1, timeLeftMs())).catch((error: unknown) => {
    if (error instanceof NoLongerStanding)
      throw new Stop('lock_lost', `run ${run.id} no longer stands: fenced committed nothing`, {
        cause: error,
      });
    if (error instanceof TransactionAborted)
      throw new PostgresError(
        'the fenced transaction was rolled back: an SQL error in it had been swallowed',
        {
          cause: error,
        },
      );
    throw error instanceof PostgresError && isServerError(error.cause) && !session.lost.aborted
      ? error.cause
      : error;
  });
}

/** Asks of a statement that takes long, at growing intervals. */
function watchFor(session: Session, ask: () => Promise<void>): ReturnType<typeof setInterval> {
  let askedOf: Moment | null = null;
  let nextMs = suspiciousMs;
  return setInterval(() => {
    const since = session.underWaySince;
    if (since !== askedOf) [askedOf, nextMs] = [since, suspiciousMs];
    if (since === null || elapsedMs(since) < nextMs) return;
    nextMs *= 2;
    void ask();
  }, suspiciousMs);
}

/** The server sees no deadlock, since the lock's transaction waits for nothing but us. Never throws. */
async function endIfStuck(session: Session, pid: number, options: FencedOptions): Promise<void> {
  try {
    const other = await options.openSession();
    try {
      const results = await other.send(`SELECT cronce.waits_for(${pid}, ${options.pid}) AS stuck`, 5_000);
      if (answerOf<boolean>(results, 'stuck'))
        session.destroy(
          new FencedWaitsForTx(
            'fenced waits for what tx of the same run has locked, and would for ever: write those rows through one of the two',
          ),
        );
    } finally {
      await other.close();
    }
  } catch {
    // Not known, then; the deadline ends it.
  }
}

/** Why the session was given up says more than that it was. */
function whyLost(session: Session, error: unknown): unknown {
  const reason: unknown = session.lost.aborted ? session.lost.reason : undefined;
  return reason instanceof FencedWaitsForTx ? reason : error;
}
