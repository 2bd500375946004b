import { answerOf } from './record.ts';
import type { Session } from './session.ts';

/**
 * This module's secret: how a statement of ours is kept from what others have set. A role, a database or a job may have
 * left anything as its defaults (serializable, read-only, a statement_timeout of a second, a search_path): each
 * transaction of ours has its own kind and its own limits. `session.send` reads its answers by parsers of ours.
 */
export interface TransactionLimits {
  /** For each statement, ms. */
  readonly statementMs: number;
  /** For each wait on a lock, ms. Keep it below `statementMs`: lock_timeout shall speak first. */
  readonly lockMs: number;
  /** How long the transaction may stand idle between two messages, ms; 0 for ever. */
  readonly idleMs?: number;
}

/** Not deferrable: a read would wait for every serializable transaction of others to end. */
export const begin = 'BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE, NOT DEFERRABLE';
const beginReading = 'BEGIN ISOLATION LEVEL READ COMMITTED, READ ONLY, NOT DEFERRABLE';

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
export function callSql(expression: string, column: string, limitMs = 5_000): string {
  return transaction([`SELECT ${expression} AS ${column}`], { statementMs: limitMs, lockMs: limitMs * 0.8 });
}

/** The longest that one may take, or wait for a lock, ms; the server ends it then, should nobody wait for it any more. */
const longestMs = 10_000;

/** What an SQL expression is; it changes nothing. @throws {PostgresError} */
export async function ask<T>(session: Session, expression: string): Promise<T> {
  return answer(session, beginReading, expression);
}

/** The same of an expression that changes something. Durable once answered. @throws {PostgresError} */
export async function change<T>(session: Session, expression: string): Promise<T> {
  return answer(session, begin, expression);
}

async function answer<T>(session: Session, beginning: string, expression: string): Promise<T> {
  const limits = limitsSql({ statementMs: longestMs, lockMs: longestMs * 0.8, idleMs: longestMs });
  const sql = [beginning, limits, `SELECT ${formats}`, `SELECT (${expression}) AS answer`, 'COMMIT'].join(
    '; ',
  );
  try {
    return answerOf<T>(await session.send(sql, longestMs + 1_000), 'answer');
  } catch (error) {
    // The error has ended the message before its COMMIT.
    await session.send('ROLLBACK').catch(() => undefined);
    throw error;
  }
}

/** What a function of ours may be given. */
export type Argument =
  string | number | bigint | boolean | Date | null | { readonly json: unknown } | { readonly sql: string };

/** Whose escaping counts: that of the connection's driver. */
export type Quoting = Pick<Session, 'literal'>;

/** `cronce.name(…)`, with its arguments quoted: the one place where a value becomes SQL. */
export function call(session: Quoting, name: string, ...given: readonly Argument[]): string {
  return `cronce.${name}(${given.map((argument) => quoted(session, argument)).join(', ')})`;
}

export function quoted(session: Quoting, argument: Argument): string {
  if (argument === null) return 'NULL';
  if (typeof argument === 'string') return session.literal(argument);
  if (typeof argument !== 'object') return String(argument);
  if (argument instanceof Date) return `${session.literal(argument.toISOString())}::timestamptz`;
  return 'sql' in argument ? argument.sql : `${session.literal(JSON.stringify(argument.json))}::jsonb`;
}

/** A text as JSON has it: there also NUL can be written, so that the server, and not the protocol, refuses it. */
export function jsonText(session: Session, text: string): string {
  return `(${session.literal(JSON.stringify([text]))}::jsonb ->> 0)`;
}

/** An expression of its own, unlike our functions, pins nothing. */
const formats = [
  `pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)`,
  `pg_catalog.set_config('transform_null_equals', 'off', true)`,
  `pg_catalog.set_config('row_security', 'on', true)`,
  // A stricter setting is left alone.
  `CASE WHEN pg_catalog.current_setting('synchronous_commit') = 'off'` +
    ` THEN pg_catalog.set_config('synchronous_commit', 'local', true) END`,
].join(', ');

function atLeastOne(ms: number): number {
  return Math.max(1, Math.ceil(ms));
}
