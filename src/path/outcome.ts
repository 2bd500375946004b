import type { QueryResult } from '../postgres/driver.ts';
import { captureError, captureText, captureValue, isA } from '../capture.ts';
import { call, callSql, limitsSql } from '../postgres/call.ts';
import { answerOf, toRecord } from '../postgres/record.ts';
import {
  CancelRequested,
  ConnectionLost,
  isServerError,
  NoLongerStanding,
  PostgresError,
  StatementCancelled,
  UniqueViolation,
} from '../postgres/errors.ts';
import type { Session } from '../postgres/session.ts';
import { PermanentError, type Json, type Outcome, type RunError, type RunRecord } from '../run.ts';
import { Stop, type WorkResult } from './ending.ts';

/**
 * This step's secret: what a result means, and how it is recorded so that record and writes agree.
 */

interface Verdict {
  readonly status: Extract<Outcome, 'succeeded' | 'failed' | 'timed_out' | 'lost' | 'cancelled'>;
  readonly output: Json;
  readonly error: RunError | null;
  /** No other attempt would be better. */
  readonly final: boolean;
}

export interface RecordOptions {
  readonly run: RunRecord;
  readonly session: Session;
  /** A new session, where the run's own is dead or stuck. */
  readonly openSession: () => Promise<Session>;
  /** Until the run's time is over, ms: its deferred constraints are checked in it. */
  readonly workLeftMs: () => number;
  /** Until the invocation is killed, ms: so long may a COMMIT take, while the lease is vouched for. */
  readonly timeLeftMs: () => number;
  readonly now: Date | undefined;
}

/** The record of this run could be neither written nor read; the sweep will settle it. */
export class OutcomeUnknown extends Error {
  override readonly name = 'OutcomeUnknown';
}

/**
 * The one place that maps a result to an outcome.
 * @param sessionLost whether the lock's own session is gone: then an error that says so is no fault of the work's
 */
export function verdictOf(result: WorkResult, sessionLost = false): Verdict {
  switch (result.kind) {
    case 'returned':
      return { status: 'succeeded', output: captureValue(result.value), error: null, final: true };
    case 'threw':
      return sessionLost && isA(result.error, ConnectionLost)
        ? lost(result.error)
        : {
            status: 'failed',
            output: null,
            error: captureError(result.error),
            final: isPermanent(result.error),
          };
    case 'stopped':
      return stopped(result.stop, result.cutOff);
  }
}

function stopped(stop: Stop, cutOff: boolean): Verdict {
  const words = cutOff ? `${stop.message}; the work ignored its signal and was cut off` : stop.message;
  const error = { name: stop.name, message: captureText(words), code: stop.reason };
  switch (stop.reason) {
    case 'lock_lost':
      return { status: 'lost', output: null, error, final: false };
    case 'deadline':
      return { status: 'timed_out', output: null, error, final: false };
    case 'cancelled':
      return { status: 'cancelled', output: null, error, final: true };
  }
}

function lost(error: unknown): Verdict {
  return { status: 'lost', output: null, error: captureError(error), final: false };
}

function failed(error: unknown): Verdict {
  return { status: 'failed', output: null, error: captureError(error), final: false };
}

function isPermanent(error: unknown): boolean {
  return isA(error, PermanentError);
}

/**
 * Records what became of the work and commits it, in one round trip where all is well. Answers the record as it
 * stands in the database, which after a lost acknowledgement or a cancel may say otherwise than the work did.
 * @throws {OutcomeUnknown}
 */
export async function recordOutcome(result: WorkResult, options: RecordOptions): Promise<RunRecord> {
  const { session } = options;
  const lostNow = session.lost.aborted;
  const verdict = verdictOf(result, lostNow);
  const cutOff = result.kind === 'stopped' && result.cutOff;
  const recording = { ...options, hasStopped: !cutOff };
  if (lostNow)
    return recordOutside(verdict.status === 'succeeded' ? lost(session.lost.reason) : verdict, recording);
  if (cutOff && session.underWaySince !== null) return recordOutside(verdict, recording);
  return verdict.status === 'succeeded' ? commitWork(verdict, recording) : rollBackWork(verdict, recording);
}

interface Recording extends RecordOptions {
  /** Whether the work has come to its end: one that was cut off may still be going on, and its lock's next run waits. */
  readonly hasStopped: boolean;
}

/** What is kept of the invocation's time for a look at a record whose COMMIT was not answered, ms. */
const lookMs = 1_000;
/** The longest that a record outside the run's own transaction may take, ms. */
const outsideMs = 5_000;

/**
 * Deferred constraints are checked while the savepoint still stands, so that their failure leaves the lock held, in the
 * work's own time, and as whoever the job has become. What follows is done as ourselves, under limits of our own; none for
 * COMMIT, since giving up the wait for a synchronous standby would make it less durable than it says.
 */
async function commitWork(verdict: Verdict, options: Recording): Promise<RunRecord> {
  const { session, workLeftMs } = options;
  const sql = [
    `SET LOCAL statement_timeout = ${Math.max(1, Math.ceil(workLeftMs()))}`,
    'SET CONSTRAINTS ALL IMMEDIATE',
    'RELEASE SAVEPOINT work',
    ...finishSql(verdict, options),
    'SET LOCAL statement_timeout = 0',
    'COMMIT',
  ].join('; ');
  try {
    return committed(await session.send(sql, commitLimitMs(options)));
  } catch (error) {
    if (error instanceof ConnectionLost) return recordOutside(lost(error), options);
    if (error instanceof NoLongerStanding || isSecondSuccess(error))
      return recordOutside(lost(error), options);
    return rollBackWork(instead(error, workLeftMs()), options);
  }
}

/** How long a COMMIT is waited for, ms: as long as the invocation lives, but for a look at what became of it. */
function commitLimitMs({ timeLeftMs }: Recording): number {
  return Math.max(lookMs, timeLeftMs() - lookMs);
}

/** What becomes of work that returned, and whose commit was then refused. */
function instead(error: unknown, workLeftMs: number): Verdict {
  if (error instanceof CancelRequested) return stopped(new Stop('cancelled', error.message), false);
  if (error instanceof StatementCancelled && workLeftMs <= 0)
    return stopped(new Stop('deadline', "the run's time was over before its commit"), false);
  return failed(explained(error));
}

/** The work's writes go, the lock stays until the record is committed. */
async function rollBackWork(verdict: Verdict, options: Recording): Promise<RunRecord> {
  const sql = ['ROLLBACK TO SAVEPOINT work', ...finishSql(verdict, options), 'COMMIT'].join('; ');
  try {
    return committed(await options.session.send(sql, commitLimitMs(options)));
  } catch (error) {
    // The savepoint may be gone (the record itself was refused), or the whole transaction, or the connection.
    const verdictNow = error instanceof NoLongerStanding ? lost(error) : verdict;
    return recordOutside(verdictNow, options);
  }
}

/** COMMIT of an aborted transaction is answered, without an error, by ROLLBACK. */
function committed(results: readonly QueryResult[]): RunRecord {
  if (results.at(-1)?.command !== 'COMMIT')
    throw new PostgresError('COMMIT was answered by ROLLBACK: an SQL error in the work had been swallowed');
  return toRecord(answerOf<RunRecord>(results, 'finished'));
}

/**
 * On the run's own session after a plain rollback, or on a new one. What stands already stays: a success whose
 * acknowledgement was lost is answered as the success that it is.
 */
async function recordOutside(verdict: Verdict, options: Recording): Promise<RunRecord> {
  const { session, openSession } = options;
  try {
    if (isFree(session)) return await settle(session, verdict, options);
  } catch (error) {
    if (!session.lost.aborted) return recordMinimal(error, verdict, options);
  }
  session.destroy(new ConnectionLost('given up: it was busy with what the work had left behind'));
  const fresh = await openSession().catch((cause: unknown) => {
    throw new OutcomeUnknown(
      `run ${options.run.id} ended as ${verdict.status}, but it could not be recorded`,
      { cause },
    );
  });
  try {
    return await settle(fresh, verdict, options);
  } catch (error) {
    return await recordMinimal(error, verdict, { ...options, session: fresh });
  } finally {
    await fresh.close();
  }
}

/** Where even the cleaned form is refused: the bare outcome, which stays what it is. */
async function recordMinimal(refused: unknown, verdict: Verdict, options: Recording): Promise<RunRecord> {
  const name = refused instanceof Error ? refused.name : 'Error';
  const bare = { name, message: 'the outcome could not be stored as it was' };
  try {
    return await settle(options.session, { ...verdict, output: null, error: bare }, options);
  } catch (cause) {
    throw new OutcomeUnknown(`the outcome of run ${options.run.id} could not be recorded`, { cause });
  }
}

async function settle(session: Session, verdict: Verdict, options: Recording): Promise<RunRecord> {
  const settled = call(session, 'settle', { json: outcomeJson(verdict, options) });
  const limitMs = Math.max(lookMs / 2, Math.min(outsideMs, options.timeLeftMs()));
  const results = await session.send(`ROLLBACK; ${callSql(settled, 'settled', limitMs)}`, limitMs);
  return toRecord(answerOf<RunRecord>(results, 'settled'));
}

/** As ourselves: the job may have become another role, and set limits of its own. */
function finishSql(verdict: Verdict, options: Recording): string[] {
  const finished = call(options.session, 'finish', { json: outcomeJson(verdict, options) });
  const limits = { statementMs: outsideMs, lockMs: outsideMs * 0.8, idleMs: options.run.leaseMs ?? 0 };
  return ['SET LOCAL ROLE NONE', limitsSql(limits), `SELECT ${finished} AS finished`];
}

function outcomeJson(verdict: Verdict, options: Recording): object {
  return {
    id: options.run.id,
    ...verdict,
    own: options.hasStopped,
    now: options.now?.toISOString() ?? null,
  };
}

function isFree(session: Session): boolean {
  return !session.lost.aborted && session.underWaySince === null;
}

/** The unique index had the last word: another run of this slot, under another lock, has succeeded. */
function isSecondSuccess(error: unknown): boolean {
  const cause = error instanceof UniqueViolation ? (error.cause as { constraint?: string }) : {};
  return cause.constraint === 'run_one_success_per_slot';
}

/** What our own statements need was there when the run began: it is the job's constraints and triggers that speak. */
function explained(error: unknown): unknown {
  if (error instanceof StatementCancelled)
    return new PostgresError(`the commit was cancelled: ${error.message}`, { cause: error });
  return error instanceof PostgresError && isServerError(error.cause) ? error.cause : error;
}
