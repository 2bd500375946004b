import type { Attempt } from './driver.ts';

/**
 * What a database error means to Cronce, decided here once, by SQLSTATE and never by message text
 * (messages are translated; codes are not). Each class keeps its cause and carries the cure.
 *
 * One code means different things at different times: 57P01 from the server's own mouth ends the session, and raised
 * in a function it is an error like any other. So there are three tables: for a server that turns us away, for one
 * that ends a session (FATAL, PANIC), and for one that refuses a statement of ours. What it says about a statement
 * of the job's is for the job, word by word, and for none of them.
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
/** Nothing came in the time that a message, or the making of a session, was given. */
export class NoAnswer extends ConnectionLost {
  constructor(limitMs: number, cure = '') {
    super(`no answer within ${Math.round(limitMs)} ms${cure && `: ${cure}`}`);
  }
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

type Kind<E> = new (message: string, options: { code: string; cause: unknown }) => E;
type Meaning<E extends PostgresError = PostgresError> = readonly [Kind<E>, cure: string];

const tlsCure = 'add sslmode=verify-full to DATABASE_URL';
const hbaCure = 'have this host, user and database allowed in its pg_hba.conf';

const wrongPassword: Meaning = [AccessRefused, 'check user and password in DATABASE_URL'];

/** No session is had. By SQLSTATE or its class; where one code has several causes, by the server's routine as well. */
const refusals: Readonly<Record<string, Meaning>> = {
  '28': wrongPassword,
  '28000 InitializeSessionUserId': [AccessRefused, 'check the user in DATABASE_URL, and that it may LOGIN'],
  '28P01': wrongPassword,
  '3D000': [AccessRefused, 'check the database name in DATABASE_URL'],
  '42501': [AccessRefused, 'grant the user of DATABASE_URL the right to CONNECT to this database'],
  '53300': [
    CannotConnect,
    'the server has no connection left: raise max_connections, or put a pooler before it',
  ],
  '53300 InitializeSessionUserId': [CannotConnect, 'raise the CONNECTION LIMIT of the role in DATABASE_URL'],
  '53300 CheckMyDatabase': [CannotConnect, 'raise the CONNECTION LIMIT of the database in DATABASE_URL'],
  '55000': [
    CannotConnect,
    'the database in DATABASE_URL takes no connections: ALTER DATABASE … ALLOW_CONNECTIONS',
  ],
  '57P03': [CannotConnect, 'the server of DATABASE_URL is starting up or shutting down; try again'],
  '08P01': [CannotConnect, `a pooler that takes only TLS says so like this: ${tlsCure}`],
};

/** A pooler that can give us no server at once lets us wait, first without a word and then with this. */
export const poolCure =
  'behind a pooler, its pool is taken: it needs a place for each run at once, so raise its size (default_pool_size)';

/** FATAL and PANIC end any session, whatever the code. */
const endings: Readonly<Record<string, string>> = {
  '08P01': poolCure,
  '57P01': 'the server or an operator ended this session',
  '57P02': 'the server crashed and restarts',
  '57P05': 'the session was idle for too long',
  '25P03': 'nothing was heard of this holder for a whole lease',
  '25P04': 'transaction_timeout ended the transaction',
};

const faults: Readonly<Record<string, Meaning>> = {
  '42501': [AccessRefused, 'grant the coordinator’s role usage of schema cronce and its tables'],
  '57014': [StatementCancelled, 'a statement was cancelled, or ran into its time limit'],
  '55P03': [LockTimeout, 'a lock was not to be had in time'],
  '25P02': [TransactionAborted, 'an earlier statement failed and its error was not passed on'],
  '25006': [NotWritable, 'point DATABASE_URL at a primary that takes writes'],
  '0A000': [NotWritable, 'point DATABASE_URL at the primary: a standby takes no writes'],
  CR003: [NotWritable, 'point DATABASE_URL at the primary: a standby grants locks that the primary holds'],
  CR001: [SchemaMismatch, 'deploy the newer Cronce'],
  CR002: [SchemaMismatch, 'run `npx cronce migrate` (`npm run migrate` in a checkout of Cronce)'],
  '3F000': [
    SchemaMismatch,
    'schema cronce is missing: run `npx cronce migrate` (`npm run migrate` in a checkout of Cronce)',
  ],
  '42883': [
    SchemaMismatch,
    'a function is missing: run `npx cronce migrate` (`npm run migrate` in a checkout of Cronce)',
  ],
  CR004: [NoLongerStanding, 'the run was settled by someone else, so nothing of it was committed'],
  CR006: [CancelRequested, 'its writes were rolled back'],
  '23505': [UniqueViolation, 'a row with this key exists already'],
};

/** The server's own answer, as both drivers give it; a code alone may be Node's (EPIPE) or anyone's. */
export interface ServerError extends Error {
  readonly code: string;
  /** In the server's language. */
  readonly severity: string;
  /** The function in the server's source that says so: never translated. */
  readonly routine?: string;
}

export function isServerError(error: unknown): error is ServerError {
  return (
    error instanceof Error &&
    'severity' in error &&
    typeof error.severity === 'string' &&
    'code' in error &&
    typeof error.code === 'string' &&
    /^[0-9A-Z]{5}$/.test(error.code)
  );
}

/**
 * Whether the server says that the session ends with this. In some languages it says so in other words, so where
 * this is false the end of the socket still decides.
 */
export function isFatal({ severity }: ServerError): boolean {
  return severity === 'FATAL' || severity === 'PANIC';
}

/**
 * The typed error for anything a driver throws at a statement of ours. The driver's own error stays as `cause`.
 * A DOM ErrorEvent (what a WebSocket rejects with: no Error, no message) becomes a `ConnectionLost`.
 */
export function typed(error: unknown): PostgresError {
  if (error instanceof PostgresError) return error;
  if (!isServerError(error)) return connectionLost(error);
  if (isFatal(error)) return refusalOf(error) ? turnedAway(error) : connectionLost(error);
  return said(error, faults[error.code] ?? [PostgresError, '']);
}

/** The session is gone, by the server's word or without one. */
export function connectionLost(error: unknown): ConnectionLost {
  if (error instanceof ConnectionLost) return error;
  if (!isServerError(error)) return new ConnectionLost(socketWords(error), { cause: error });
  return said(error, [ConnectionLost, endings[error.code] ?? 'the server ended this session']);
}

function said<E extends PostgresError>(error: ServerError, [Kind, cure]: Meaning<E>): E {
  const { code, message } = error;
  return new Kind(`${message} (${code})${cure && `: ${cure}`}`, { code, cause: error });
}

function refusalOf({ code, routine = '' }: ServerError): Meaning | undefined {
  return refusals[`${code} ${routine}`] ?? refusals[code] ?? refusals[code.slice(0, 2)];
}

function turnedAway(error: ServerError): PostgresError {
  return said(error, refusalOf(error) ?? [CannotConnect, 'the server of DATABASE_URL refused the session']);
}

/**
 * Whether no session was had for a reason that passes by itself: no connection left (53300), a server that starts or
 * stops (57P03), or whose port is closed meanwhile; and what a pooler before such a server says (class 08).
 */
export function isPassing(error: unknown): boolean {
  if (!(error instanceof CannotConnect)) return false;
  if (error.code !== null) return /^(53300|57P03|08)/.test(error.code);
  return /^(ECONNREFUSED|ECONNRESET)$/.test(socketFailure(error.cause).code);
}

/** Whatever kept us from a session, said as that, with the one cure that helps. */
export function cannotConnect(thrown: unknown, attempt: Attempt): PostgresError {
  if (thrown instanceof PostgresError && !(thrown instanceof ConnectionLost)) return thrown;
  if (attempt.askedForPassword && !attempt.hasPassword) return noPassword(thrown);
  if (isServerError(thrown) && thrown.code === '08P01' && poolerRefuses.test(thrown.message))
    return said(thrown, wrongPassword);
  if (isServerError(thrown))
    return thrown.routine === 'ClientAuthentication' ? refusedByRule(thrown, attempt) : turnedAway(thrown);
  const { code, words } = socketFailure(thrown);
  const cure = cureOf(code, attempt);
  return new CannotConnect(`cannot connect to PostgreSQL (${words}): ${cure}`, { cause: thrown });
}

function noPassword(cause: unknown): AccessRefused {
  const cure = 'put it into DATABASE_URL, percent-encoded, or into PGPASSWORD';
  return new AccessRefused(`the server asks for a password, and none is given: ${cure}`, { cause });
}

/** PgBouncer has one code for all that it says, and says it in English. */
const poolerRefuses = /^(?:(?:password|SASL) authentication failed|no such user)/;

/** No line of pg_hba.conf lets us in: most often because a server takes nothing unencrypted. */
function refusedByRule(error: ServerError, { tls, driver }: Attempt): AccessRefused {
  const cure = tls || driver === 'neon' ? hbaCure : `${tlsCure}; if it is there, ${hbaCure}`;
  return said(error, [AccessRefused, `the server of DATABASE_URL refuses us by rule; ${cure}`]);
}

/** Node's own codes, of DNS, sockets and TLS → the cure. */
const cures: readonly (readonly [codes: RegExp, cure: string])[] = [
  [
    /^(ENOTFOUND|EAI_\w+|ENODATA)$/,
    'this host’s name cannot be resolved; check the host in DATABASE_URL, and that DNS answers here',
  ],
  [/^ECONNREFUSED$/, 'nothing listens there; check host and port in DATABASE_URL, and that the server is up'],
  [
    /^(ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|EHOSTDOWN)$/,
    'out of reach; check host and port in DATABASE_URL, and that firewall, security group and subnet let us through',
  ],
  [
    /^(ENOENT|EACCES)$/,
    'no socket of a server is to be had there; check the folder and port in DATABASE_URL',
  ],
  [
    /^(\w*SELF_SIGNED\w*|UNABLE_TO_\w+|CERT_UNTRUSTED|INVALID_CA|CERT_SIGNATURE_FAILURE)$/,
    'its certificate comes from a CA that is not known here; name that CA’s file as sslrootcert in DATABASE_URL, or in NODE_EXTRA_CA_CERTS',
  ],
  [
    /^(ERR_TLS_CERT_ALTNAME_INVALID|HOSTNAME_MISMATCH)$/,
    'its certificate is for another host; give DATABASE_URL a host name that stands in the certificate',
  ],
  [/^CERT_HAS_EXPIRED$/, 'its certificate has expired; renew it on the server of DATABASE_URL'],
  [/^CERT_NOT_YET_VALID$/, 'its certificate is not valid yet; check the clocks of both, or the certificate'],
  [
    /^(EPROTO|ERR_SSL_\w+)$/,
    'no TLS could be agreed with the server of DATABASE_URL; look for the versions it allows',
  ],
];

function cureOf(code: string, attempt: Attempt): string {
  const known = notPostgres(attempt) ?? cures.find(([codes]) => codes.test(code))?.[1];
  if (known !== undefined) return attempt.relayed ? `${known} (or in CRONCE_NEON_RELAY)` : known;
  if (attempt.relayed) return 'check CRONCE_NEON_RELAY, and host and port in DATABASE_URL';
  const closed = attempt.firstBytes === undefined && attempt.driver === 'pg' && !attempt.tls;
  const tls = closed ? `; if it takes only TLS, ${tlsCure}` : '';
  return `check host and port in DATABASE_URL, and that the server is up and reachable${tls}`;
}

/** A server that knows no TLS answers N to being asked for it, one that does S, and anything else is no PostgreSQL. */
function notPostgres({ tls, driver, firstBytes }: Attempt): string | undefined {
  if (firstBytes === undefined || driver === 'neon') return undefined;
  const first = String.fromCharCode(firstBytes[0] ?? 0);
  if (tls && first === 'N')
    return 'the server of DATABASE_URL has no TLS; take sslmode out, or turn TLS on there (ssl = on)';
  // Beside its one byte, a server that is full or broken may answer an error at once.
  const kinds = tls ? 'E' : 'RENv';
  const accepts = tls && firstBytes.length === 1 && first === 'S';
  if (accepts || (kinds.includes(first) && firstBytes[1] === 0)) return undefined;
  return 'what listens there is no PostgreSQL; check host and port in DATABASE_URL';
}

/** A WebSocket hands over an event with the error inside, or behind that as its cause. */
function socketFailure(thrown: unknown): { code: string; words: string } {
  const inner = typeof thrown === 'object' && thrown !== null && 'error' in thrown ? thrown.error : undefined;
  const error = inner instanceof Error ? inner : thrown;
  return {
    code: codeOf(error) ?? codeOf((error as Error | undefined)?.cause) ?? '',
    words: socketWords(error),
  };
}

function codeOf(error: unknown): string | undefined {
  if (error instanceof NoAnswer) return 'ETIMEDOUT';
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}

/** Node gives an AggregateError with an empty message when every address of a host refuses. */
function socketWords(error: unknown): string {
  if (!(error instanceof Error)) return `the connection failed${eventMessage(error)}`;
  if (error.message) return error.message.replace(/\s+/g, ' ');
  return error instanceof AggregateError ? error.errors.map(String).join('; ') : error.name;
}

function eventMessage(event: unknown): string {
  const told = typeof event === 'object' && event !== null && 'message' in event ? event.message : '';
  return typeof told === 'string' && told ? `: ${told}` : '';
}
