/**
 * How each transaction of ours begins: at a level and under limits of our own. What a role, a database or a job has
 * left as its defaults (serializable, read-only, a statement_timeout of a second) is somebody else's and must not matter.
 */
export interface TransactionLimits {
  /** For each statement, ms. */
  readonly statementMs: number;
  /** For each wait on a lock, ms. Keep it apart from `statementMs`: lock_timeout shall speak first. */
  readonly lockMs: number;
  /** How long the transaction may stand idle between two messages, ms; 0 for ever. */
  readonly idleMs?: number;
}

export const begin = 'BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE NOT DEFERRABLE';

/** `transaction_timeout` exists from PostgreSQL 17 on, and is an error before. */
export function limitsSql({ statementMs, lockMs, idleMs = 0 }: TransactionLimits): string {
  return (
    `SELECT pg_catalog.set_config('statement_timeout', '${atLeastOne(statementMs)}', true)` +
    `, pg_catalog.set_config('lock_timeout', '${atLeastOne(lockMs)}', true)` +
    `, pg_catalog.set_config('idle_in_transaction_session_timeout', '${idleMs}', true)` +
    `, CASE WHEN pg_catalog.current_setting('transaction_timeout', true) <> '0'` +
    ` THEN pg_catalog.set_config('transaction_timeout', '0', true) END`
  );
}

/** One transaction, as one message: one round trip. */
export function transaction(statements: readonly string[], limits: TransactionLimits): string {
  return [begin, limitsSql(limits), ...statements, 'COMMIT'].join('; ');
}

/** A short look or write of ours: bounded by `limitMs` in all, but for what the network adds. */
export function call(expression: string, column: string, limitMs = 5_000): string {
  return transaction([`SELECT ${expression} AS ${column}`], { statementMs: limitMs, lockMs: limitMs * 0.8 });
}

function atLeastOne(ms: number): number {
  return Math.max(1, Math.ceil(ms));
}
