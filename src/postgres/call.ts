import { answerOf } from './record.ts';
import type { Session } from './session.ts';

/**
 * This module's secret: how a statement of ours is kept from the defaults of a database or role that are none of ours.
 * Each is a transaction of its own, one message, with its own kind of transaction and its own limits. `session.send`
 * reads the answer by parsers of ours, so that it doesn't matter how dates are written or what a job made of a driver.
 */

/** The longest that one may take, or wait for a lock, ms; the server ends it then, should nobody wait for it any more. */
const limitMs = 10_000;

/** What an SQL expression is; it changes nothing. @throws {PostgresError} */
export async function ask<T>(session: Session, expression: string): Promise<T> {
  return call(session, expression, 'READ ONLY');
}

/** The same of an expression that changes something. Durable once answered. @throws {PostgresError} */
export async function change<T>(session: Session, expression: string): Promise<T> {
  return call(session, expression, 'READ WRITE');
}

async function call<T>(session: Session, expression: string, access: string): Promise<T> {
  // Not deferrable: such a read would wait for every serializable transaction of others to end.
  const begin = `BEGIN ISOLATION LEVEL READ COMMITTED, ${access}, NOT DEFERRABLE`;
  const message = [begin, `SELECT ${settings}`, `SELECT (${expression}) AS answer`, 'COMMIT'].join('; ');
  try {
    return answerOf<T>(await session.send(message), 'answer');
  } catch (error) {
    // The error has ended the message before its COMMIT.
    await session.send('ROLLBACK').catch(() => undefined);
    throw error;
  }
}

const settings = [
  ...Object.entries({
    statement_timeout: String(limitMs),
    lock_timeout: String(limitMs),
    idle_in_transaction_session_timeout: String(limitMs),
    search_path: 'pg_catalog, pg_temp',
    transform_null_equals: 'off',
    row_security: 'on',
  }).map(([name, value]) => `set_config('${name}', '${value}', true)`),
  // From version 17 on; an error before.
  `CASE WHEN current_setting('transaction_timeout', true) <> '0' THEN set_config('transaction_timeout', '0', true) END`,
  // A stricter setting is left alone.
  `CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'local', true) END`,
].join(', ');
