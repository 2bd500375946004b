import { begin, call, limitsSql, type Quoting } from '../postgres/call.ts';
import type { QueryResult } from '../postgres/driver.ts';
import { PostgresError } from '../postgres/errors.ts';
import { answerOf } from '../postgres/record.ts';
import { enterLimitMs, enterWaitMs } from './limits.ts';

/**
 * This step's secret: what the lock's transaction begins with. It takes the lock that the claim has won, reads back the
 * lease that the server will apply to it, and bounds what the work may wait for.
 */

/** T1, as one run of statements, to follow T0 in the same message. It stays open: it is the lock. */
export function enterSql(
  session: Quoting,
  runId: string,
  limits: { leaseMs: number; workMs: number },
): string {
  const { leaseMs, workMs } = limits;
  return [
    begin,
    limitsSql({ statementMs: enterLimitMs, lockMs: enterWaitMs, idleMs: leaseMs }),
    `SELECT ${call(session, 'enter', runId)} AS entered`,
    'SET LOCAL lock_timeout TO DEFAULT',
    `SET LOCAL statement_timeout = ${Math.max(1, Math.ceil(workMs))}`,
    'SAVEPOINT work',
  ].join('; ');
}

export interface Entered {
  /** False where the run was skipped, or must give way to a higher fence. */
  readonly entered: boolean;
  readonly pid: number;
}

/** @throws {PostgresError} if the server does not apply the lease that was asked for */
export function entered(results: readonly QueryResult[], leaseMs: number): Entered {
  const answer = answerOf<{ entered: boolean; pid: number; lease: string }>(results, 'entered');
  checkLease(answer.lease, leaseMs);
  return answer;
}

export function checkLease(applied: string, leaseMs: number): void {
  if (milliseconds(applied) === leaseMs) return;
  throw new PostgresError(
    `the server applies a lease of ${applied} instead of ${leaseMs} ms: ` +
      'let the coordinator’s role set idle_in_transaction_session_timeout, and no job change it',
  );
}

/** A time setting as the server shows it: the largest unit that divides it, or a bare 0. */
function milliseconds(shown: string): number {
  const unitMs: Readonly<Record<string, number>> = {
    ms: 1,
    s: 1_000,
    min: 60_000,
    h: 3_600_000,
    d: 86_400_000,
  };
  const [, amount, unit] = shown.match(/^(\d+)(ms|s|min|h|d)?$/) ?? [];
  return Number(amount) * (unitMs[unit ?? 'ms'] ?? 1);
}
