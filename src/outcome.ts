import type { QueryResult } from './postgres/driver.ts';
import { captureError, captureText, captureValue, isA } from './capture.ts';
import { PermanentError } from './job.ts';
import { answerOf, toRecord } from './postgres/record.ts';
import {
  ConnectionLost,
  NoLongerStanding,
  PostgresError,
  StatementCancelled,
  UniqueViolation,
} from './postgres/errors.ts';
import type { Session } from './postgres/session.ts';
import type { Json, Outcome, RunError, RunRecord } from './run.ts';
import type { Stop, WorkResult } from './ending.ts';

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
  /** For each message to the server, ms. */
  readonly timeoutMs: number;
  readonly published: boolean;
  readonly now: Date | undefined;
}

/** The record of this run could be neither written nor read; the sweep will settle it. */
export class OutcomeUnknown extends Error {
  override readonly name = 'OutcomeUnknown';
}

/** The one place that maps a result to an outcome. */
export function verdictOf(result: WorkResult): Verdict {
  switch (result.kind) {
    case 'returned':
      return { status: 'succeeded', output: captureValue(result.value), error: null, final: true };
    case 'threw':
      return isA(result.error, ConnectionLost)
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
  const verdict = verdictOf(result);
  if (session.lost.aborted)
    return recordOutside(verdict.status === 'succeeded' ? lost(session.lost.reason) : verdict, options);
  if (result.kind === 'stopped' && result.cutOff && session.underWaySince !== null)
    return recordOutside(verdict, options);
  return verdict.status === 'succeeded' ? commitWork(verdict, options) : rollBackWork(verdict, options);
}

/** Deferred constraints are checked while the savepoint still stands, so that their failure leaves the lock held. */
async function commitWork(verdict: Verdict, options: RecordOptions): Promise<RunRecord> {
  const { session, timeoutMs } = options;
  const sql = [
    'SET CONSTRAINTS ALL IMMEDIATE',
    'RELEASE SAVEPOINT work',
    finishSql(verdict, options),
    'COMMIT',
  ].join('; ');
  try {
    return committed(await session.send(sql, timeoutMs));
  } catch (error) {
    if (error instanceof ConnectionLost) return recordOutside(lost(error), options);
    if (error instanceof NoLongerStanding || isSecondSuccess(error))
      return recordOutside(lost(error), options);
    return rollBackWork(failed(explained(error)), options);
  }
}

/** The work's writes go, the lock stays until the record is committed. */
async function rollBackWork(verdict: Verdict, options: RecordOptions): Promise<RunRecord> {
  const sql = ['ROLLBACK TO SAVEPOINT work', finishSql(verdict, options), 'COMMIT'].join('; ');
  try {
    return committed(await options.session.send(sql, options.timeoutMs));
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
async function recordOutside(verdict: Verdict, options: RecordOptions): Promise<RunRecord> {
  const { session, openSession } = options;
  try {
    if (isFree(session)) return await settle(session, verdict, options);
  } catch (error) {
    if (!session.lost.aborted) return recordMinimal(error, options);
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
    return await recordMinimal(error, { ...options, session: fresh });
  } finally {
    await fresh.close();
  }
}

/** Where even the cleaned form is refused: the bare outcome. */
async function recordMinimal(refused: unknown, options: RecordOptions): Promise<RunRecord> {
  const name = refused instanceof Error ? refused.name : 'Error';
  const bare = { name, message: 'the outcome could not be stored as it was' };
  try {
    return await settle(
      options.session,
      { status: 'failed', output: null, error: bare, final: false },
      options,
    );
  } catch (cause) {
    throw new OutcomeUnknown(`the outcome of run ${options.run.id} could not be recorded`, { cause });
  }
}

async function settle(session: Session, verdict: Verdict, options: RecordOptions): Promise<RunRecord> {
  const literal = session.literal(JSON.stringify(outcomeJson(verdict, options)));
  const sql = `ROLLBACK; SELECT cronce.settle(${literal}::jsonb) AS settled`;
  const results = await session.send(sql, options.timeoutMs);
  return toRecord(answerOf<RunRecord>(results, 'settled'));
}

function finishSql(verdict: Verdict, options: RecordOptions): string {
  const literal = options.session.literal(JSON.stringify(outcomeJson(verdict, options)));
  return `SELECT cronce.finish(${literal}::jsonb) AS finished`;
}

function outcomeJson(verdict: Verdict, options: RecordOptions): object {
  return {
    id: options.run.id,
    ...verdict,
    published: options.published,
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

function explained(error: unknown): unknown {
  return error instanceof StatementCancelled
    ? new PostgresError(`the commit was cancelled: ${error.message}`, { cause: error })
    : error;
}
