/**
 * What a database error means to Cronce, decided here once, by SQLSTATE and never by message text
 * (messages are translated; codes are not). Each class keeps its cause and carries the cure.
 */

export class PostgresError extends Error {
  override readonly name: string = 'PostgresError';
  /** SQLSTATE, or null where the server said nothing. */
  readonly code: string | null;
  constructor(message: string, options: { code?: string | null; cause?: unknown } = {}) {
    super(message, 'cause' in options ? { cause: options.cause } : undefined);
    this.code = options.code ?? null;
  }
}

/** The session could not be made: address, network, TLS. */
export class CannotConnect extends PostgresError {
  override readonly name = 'CannotConnect';
}
/** The server refused who we are, or the database that we named. */
export class AccessRefused extends PostgresError {
  override readonly name = 'AccessRefused';
}
/** The session is gone, or answers no longer. Whatever it held is, or soon will be, free. */
export class ConnectionLost extends PostgresError {
  override readonly name = 'ConnectionLost';
}
/** The schema is missing, too old, or newer than this code understands. */
export class SchemaMismatch extends PostgresError {
  override readonly name = 'SchemaMismatch';
}
/** A standby, or a database set read-only. */
export class NotWritable extends PostgresError {
  override readonly name = 'NotWritable';
}
/** lock_timeout. */
export class LockTimeout extends PostgresError {
  override readonly name = 'LockTimeout';
}
/** pg_cancel_backend or statement_timeout: the connection lives, the transaction is aborted. */
export class StatementCancelled extends PostgresError {
  override readonly name = 'StatementCancelled';
}
/** An earlier error aborted the transaction. */
export class TransactionAborted extends PostgresError {
  override readonly name = 'TransactionAborted';
}
/** The run was settled by someone else, or its lock has a later fence. */
export class NoLongerStanding extends PostgresError {
  override readonly name = 'NoLongerStanding';
}
/** Someone has asked for the end of the run whose success was to be recorded. */
export class CancelRequested extends PostgresError {
  override readonly name = 'CancelRequested';
}

/** The driver could not put a parameter into words; the server never saw the statement. */
export class UnsendableQuery extends PostgresError {
  override readonly name = 'UnsendableQuery';
}
export class UniqueViolation extends PostgresError {
  override readonly name = 'UniqueViolation';
}

type Meaning = readonly [
  new (message: string, options: { code: string; cause: unknown }) => PostgresError,
  cure: string,
];

/** SQLSTATE, or its class of two letters, → meaning. A full code wins over its class. */
const meanings: Readonly<Record<string, Meaning>> = {
  '08': [ConnectionLost, 'the connection broke; the run is recorded or settled by the sweep'],
  '28': [AccessRefused, 'check user and password in DATABASE_URL'],
  '3D000': [AccessRefused, 'check the database name in DATABASE_URL'],
  '42501': [AccessRefused, 'grant the coordinator’s role usage of schema cronce and its tables'],
  '53300': [CannotConnect, 'the server has no connection left: raise max_connections or the role’s limit'],
  '57P01': [ConnectionLost, 'the server or an operator ended this session'],
  '57P02': [ConnectionLost, 'the server crashed and restarts'],
  '57P03': [CannotConnect, 'the server is starting up or shutting down; try again'],
  '57P05': [ConnectionLost, 'the session was idle for too long'],
  '25P03': [ConnectionLost, 'nothing was heard of this holder for a whole lease'],
  '25P04': [ConnectionLost, 'transaction_timeout ended the transaction'],
  '57014': [StatementCancelled, 'a statement was cancelled, or ran into its time limit'],
  '55P03': [LockTimeout, 'a lock was not to be had in time'],
  '25P02': [TransactionAborted, 'an earlier statement failed and its error was not passed on'],
  '25006': [NotWritable, 'point DATABASE_URL at a primary that takes writes'],
  '0A000': [NotWritable, 'point DATABASE_URL at the primary: a standby takes no writes'],
  CR003: [NotWritable, 'point DATABASE_URL at the primary: a standby grants locks that the primary holds'],
  CR001: [SchemaMismatch, 'deploy the newer Cronce'],
  CR002: [SchemaMismatch, 'run `npm run migrate`'],
  '3F000': [SchemaMismatch, 'schema cronce is missing: run `npm run migrate`'],
  '42883': [SchemaMismatch, 'a function is missing: run `npm run migrate`'],
  CR004: [NoLongerStanding, 'the run was settled by someone else, so nothing of it was committed'],
  CR006: [CancelRequested, 'its writes were rolled back'],
  '23505': [UniqueViolation, 'a row with this key exists already'],
};

interface ServerError extends Error {
  readonly code: string;
  readonly severity?: string;
}

export function isServerError(error: unknown): error is ServerError {
  return (
    error instanceof Error &&
    'code' in error &&
    typeof error.code === 'string' &&
    /^[0-9A-Z]{5}$/.test(error.code)
  );
}

/**
 * The typed error for anything a driver throws. The driver's own error stays as `cause`.
 * A DOM ErrorEvent (what a WebSocket rejects with: no Error, no message) becomes a `ConnectionLost`.
 */
export function typed(error: unknown): PostgresError {
  if (error instanceof PostgresError) return error;
  if (isServerError(error)) {
    const meaning = meanings[error.code] ?? meanings[error.code.slice(0, 2)];
    if (!meaning)
      return new PostgresError(`${error.message} (${error.code})`, { code: error.code, cause: error });
    const [Kind, cure] = meaning;
    return new Kind(`${error.message} (${error.code}): ${cure}`, { code: error.code, cause: error });
  }
  if (error instanceof Error) return new ConnectionLost(describeSocketError(error), { cause: error });
  return new ConnectionLost(`the connection failed${eventMessage(error)}`, { cause: error });
}

/** Node gives an AggregateError with an empty message when every address of a host refuses. */
function describeSocketError(error: Error): string {
  if (error.message) return error.message;
  return error instanceof AggregateError ? error.errors.map(String).join('; ') : error.name;
}

function eventMessage(event: unknown): string {
  const told = typeof event === 'object' && event !== null && 'message' in event ? event.message : '';
  return typeof told === 'string' && told ? `: ${told}` : '';
}
