import type { Transaction } from './job.ts';
import type { QueryConfig, QueryResult, QueryResultRow } from './postgres/driver.ts';
import type { Session } from './postgres/session.ts';

/**
 * This module's secret: what a job may send on the session that holds its lock.
 */

/** A transaction was used after its work had ended or was told to stop. Nothing was sent. */
export class WorkIsOver extends Error {
  override readonly name = 'WorkIsOver';
}

/** A statement that would end, split or stall the lock's transaction. Nothing was sent. */
export class ForbiddenStatement extends Error {
  override readonly name = 'ForbiddenStatement';
}

/** The transaction that a job is given. */
export class WorkTransaction implements Transaction {
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
