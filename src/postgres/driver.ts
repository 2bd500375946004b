import type { EventEmitter } from 'node:events';
import { lookup } from 'node:dns/promises';
import { setTimeout as delay } from 'node:timers/promises';
import type { CustomTypesConfig, QueryConfig, QueryResult } from 'pg';
import { moment, type Moment } from './moment.ts';
export type { Pool, PoolClient, QueryConfig, QueryResult, QueryResultRow } from 'pg';

export type DriverName = 'pg' | 'neon';

/** Where and how to reach the server. */
export interface Target {
  /** postgres:// URL. Holds the password, so it never enters an error or a log line. */
  readonly url: string;
  readonly driver: DriverName;
  /** How long a session may take to its first answer: address, network, TLS and password together. */
  readonly connectTimeoutMs: number;
  /**
   * `host:port/path?address=` of a WebSocket relay for the neon driver, to which the server's host:port is
   * appended. Absent for Neon's own hosts.
   */
  readonly relay?: string;
  readonly applicationName?: string;
}

/** What `pg` and `@neondatabase/serverless` have in common, as far as a session needs it. */
export interface DriverClient {
  readonly host: string;
  readonly ssl: unknown;
  password: unknown;
  /** The backend's, as the server told it at the start; a pooler makes numbers up. */
  readonly processID: number | null;
  readonly connection: Connection;
  connect(): Promise<unknown>;
  query(query: QueryConfig): Promise<QueryResult | QueryResult[]>;
  on(event: 'error', listener: (error: unknown) => void): unknown;
  on(event: 'end', listener: () => void): unknown;
  escapeLiteral(text: string): string;
}

/** Emits each message of the server by its name, so also `errorMessage` and `readyForQuery`. */
interface Connection extends EventEmitter {
  readonly stream: Stream;
  password(words: string): void;
  sendSCRAMClientFinalMessage(words: string): void;
  query(sql: string): void;
  sync(): void;
}

interface Stream extends EventEmitter {
  cork?(): void;
  uncork?(): void;
  write(bytes: Uint8Array, written?: () => void): unknown;
  destroy(): void;
  unref(): unknown;
  /** The neon driver's. Only the `ws` package can terminate; a browser's WebSocket just closes. */
  readonly ws?: { readonly bufferedAmount: number; close(): void; terminate?(): void };
}

/** Each driver is a chunk of its own: a Neon URL never loads `pg`, nor the other way round. */
export async function makeClient(target: Target): Promise<DriverClient> {
  return target.driver === 'neon' ? makeNeonClient(target) : makePgClient(target);
}

/** Loads what `makeClient` would. */
export async function loadDriver(driver: DriverName): Promise<unknown> {
  return driver === 'neon' ? import('@neondatabase/serverless') : import('pg/lib/client');
}

async function makePgClient(target: Target): Promise<DriverClient> {
  const { default: Client } = await import('pg/lib/client'); // not all of `pg`: no pool of its is ever used
  return new Client({ ...configOf(target), keepAlive: true }) as unknown as DriverClient;
}

/**
 * `pg` takes these three for verify-full, and warns on stderr that it will not for ever. Named as what they are, they
 * stay that; who wants libpq's weaker meaning says `uselibpqcompat=true`.
 */
function configOf({ url, applicationName }: Target): { connectionString: string; application_name?: string } {
  const connectionString = /[?&]uselibpqcompat=true\b/.test(url)
    ? url
    : url.replace(/([?&]sslmode=)(?:prefer|require|verify-ca)(?=&|$)/, '$1verify-full');
  return applicationName === undefined
    ? { connectionString }
    : { connectionString, application_name: applicationName };
}

async function makeNeonClient(target: Target): Promise<DriverClient> {
  const { Client } = await import('@neondatabase/serverless');
  const client = new Client(configOf(target));
  if (typeof WebSocket === 'undefined') client.neonConfig.webSocketConstructor = (await import('ws')).default;
  if (target.relay !== undefined) {
    const relay = target.relay;
    client.neonConfig.wsProxy = (host, port) => `${relay}${host}:${String(port)}`;
    client.neonConfig.useSecureWebSocket = false;
    client.neonConfig.pipelineTLS = false;
    client.neonConfig.forceDisablePgSSL = true;
    // A password sent before it is asked for is right for Neon's hosts alone: any other server may want SCRAM or
    // MD5. Asked first, it costs two round trips to the relay more.
    client.neonConfig.pipelineConnect = false;
  }
  return guarded(client as unknown as NeonClient);
}

type NeonClient = DriverClient & Record<(typeof handshake)[number], (message: unknown) => unknown>;

const handshake = ['_handleAuthSASL', '_handleAuthSASLContinue', '_handleAuthSASLFinal'] as const;

/** What this driver throws while it authenticates, it throws at nobody, and that ends the process. */
function guarded(client: NeonClient): DriverClient {
  const { connection } = client;
  for (const step of handshake) {
    const handle = client[step].bind(client);
    client[step] = (message) => {
      const handled = (async () => handle(message))();
      handled.catch((error: unknown) => connection.emit('error', error));
    };
  }
  if (typeof client.password !== 'string')
    client.password = async () => Promise.reject(new TypeError('the server asks for a password'));
  return client;
}

/** What is known of an attempt to connect, for the words about its failure. */
export interface Attempt {
  readonly driver: DriverName;
  readonly relayed: boolean;
  /** Whether the driver asks the server for TLS; the neon driver has it in its WebSocket. */
  readonly tls: boolean;
  readonly hasPassword: boolean;
  readonly askedForPassword: boolean;
  /** The first that came back, if anything did. */
  readonly firstBytes?: Uint8Array;
}

/** Looks on from before `connect()`. */
export function watchAttempt(client: DriverClient, target: Target): () => Attempt {
  const { connection } = client;
  const seen: { askedForPassword: boolean; firstBytes?: Uint8Array } = { askedForPassword: false };
  connection.stream.once('data', (bytes: Uint8Array) => (seen.firstBytes = bytes));
  for (const request of ['CleartextPassword', 'MD5Password', 'SASL'])
    connection.once(`authentication${request}`, () => (seen.askedForPassword = true));
  return () => ({
    ...seen,
    driver: target.driver,
    relayed: target.relay !== undefined,
    tls: target.driver === 'pg' && Boolean(client.ssl),
    hasPassword: typeof client.password === 'string' && client.password !== '',
  });
}

/** A WebSocket of the platform's own doesn't say why it failed; whether the host has an address, DNS does. */
export async function whyUnreached(thrown: unknown, client: DriverClient, target: Target): Promise<unknown> {
  if (target.driver === 'pg' || thrown instanceof Error) return thrown;
  const host = target.relay === undefined ? client.host : new URL(`ws://${target.relay}`).hostname;
  const looked = lookup(host).then(
    () => thrown,
    (error: unknown) => error,
  );
  return Promise.race([looked, delay(500, thrown, { ref: false })]);
}

/**
 * Before `connect()`: has the first query leave in one flight with the client's last word about its password. The server
 * reads it once it has let us in, and never where it refuses us. Not after SCRAM unless its certificate was verified: else
 * the server proves who it is by its answer alone, and until then a query is none of its business. The driver itself goes on as ever; it is only
 * kept from writing that query a second time.
 * @returns when the query left
 */
export function sendWithPassword(client: DriverClient, target: Target, sql: string): () => Moment | null {
  const { connection } = client;
  const query = connection.query.bind(connection);
  let leftAt: Moment | null = null;
  const leave = () => {
    leftAt = moment();
    query(sql);
  };
  const lastWords = (method: 'password' | 'sendSCRAMClientFinalMessage') => {
    const say = connection[method].bind(connection);
    connection[method] = (words) => {
      connection.stream.cork?.();
      say(words);
      leave();
      connection.stream.uncork?.();
    };
  };
  // To Neon's own hosts their driver sends the password, and then the query, before it hears anything.
  if (target.driver === 'pg' || target.relay !== undefined) {
    lastWords('password');
    if (target.driver === 'pg' && knowsServer(client.ssl)) lastWords('sendSCRAMClientFinalMessage');
  }
  connection.query = (text) => {
    connection.query = query;
    if (text !== sql) query(text);
    else if (leftAt === null) leave();
  };
  return () => leftAt;
}

/** By its certificate. */
function knowsServer(tls: unknown): boolean {
  return tls === true || (typeof tls === 'object' && tls !== null && !('rejectUnauthorized' in tls && !tls.rejectUnauthorized)); // prettier-ignore
}

export interface Statement {
  readonly query: QueryConfig | string;
  readonly values?: readonly unknown[] | undefined;
  /** How its results are read; the driver's own way if not given, which any code in the process can change. */
  readonly types?: CustomTypesConfig;
}

/**
 * Only what a statement is made of reaches the driver: a callback, a timeout or a name in the query would have it
 * answer elsewhere, early, or fail behind a pooler.
 */
export function plain({ query, values, types }: Statement): QueryConfig {
  const given: QueryConfig & { rowMode?: unknown } = typeof query === 'string' ? { text: query } : query;
  const { text, rowMode } = given;
  const [own, parsers] = [values ?? given.values, types ?? given.types];
  if (typeof text !== 'string') throw new TypeError('a query must have a text');
  if (own != null && !Array.isArray(own)) throw new TypeError('the values of a query must be an array');
  return {
    text,
    ...(own == null ? {} : { values: [...(own as unknown[])] }),
    ...(parsers == null ? {} : { types: parsers }),
    ...(rowMode === 'array' ? { rowMode } : {}),
  };
}

/** @param alone by the extended protocol, which takes one statement a message */
export async function ask(
  client: DriverClient,
  driver: DriverName,
  query: QueryConfig,
  { alone = false }: { readonly alone?: boolean },
): Promise<QueryResult | QueryResult[]> {
  // `pg` has a mode for it; the neon driver does so where a number of rows is named.
  const mode = driver === 'pg' ? { queryMode: 'extended' } : { rows: 0x7fffffff };
  const answer = await client.query(alone ? { ...query, ...mode } : query);
  // What a parameter throws may be false in JavaScript's eyes, and then both drivers take it for success.
  if ((answer as unknown) === undefined) throw new TypeError('a parameter could not be put into words');
  return answer;
}

/** How long last statements keep their distance to a goodbye through a pooler where no answer comes before, ms. */
const gapMs = 150;

/**
 * Sends last statements, if there are any, and the goodbye. Resolves when the bytes have left the process. The server
 * ends the connection when it has come to the goodbye. A FIN of ours before that, or a WebSocket's close, would have it
 * break off a statement in the middle, where `client_connection_check_interval` is set. And PgBouncer throws statements
 * away that it reads together with the goodbye, so unless nobody stands between, this follows their answer, or, where that
 * is slow, a moment later.
 */
export async function part(
  client: DriverClient,
  driver: DriverName,
  { sql, straight }: { readonly sql: string | null; readonly straight: boolean },
  limit: AbortSignal,
): Promise<void> {
  const { connection } = client;
  const { stream } = connection;
  const send = driver === 'neon' ? sendByWebSocket : sendBySocket;
  // What still comes belongs to nobody, and the drivers would throw it at somebody.
  connection.removeAllListeners();
  connection.on('error', () => undefined);
  const last = sql === null ? Buffer.alloc(0) : simpleQuery(sql);
  if (sql === null || straight) return send(stream, Buffer.concat([last, goodbye]), limit);
  const answered = new Promise((resolve) => connection.once('readyForQuery', resolve));
  await send(stream, last, limit);
  await Promise.race([answered, delay(gapMs, undefined, { signal: limit })]);
  await send(stream, goodbye, limit);
}

/** Terminate, which has no answer. */
const goodbye = Buffer.from([0x58, 0, 0, 0, 4]);

function simpleQuery(sql: string): Buffer {
  const text = Buffer.from(sql.replaceAll('\0', '') + '\0');
  const head = Buffer.alloc(5);
  head.write('Q');
  head.writeInt32BE(text.length + 4, 1);
  return Buffer.concat([head, text]);
}

async function sendBySocket(stream: Stream, bytes: Uint8Array): Promise<void> {
  await new Promise<void>((resolve) => {
    stream.once('close', resolve);
    stream.write(bytes, () => resolve());
  });
}

/** This driver sends what it was given at the end of the turn, and says that it is written before. */
async function sendByWebSocket(stream: Stream, bytes: Uint8Array, limit: AbortSignal): Promise<void> {
  stream.write(bytes);
  do await delay(1, undefined, { signal: limit });
  while ((stream.ws?.bufferedAmount ?? 0) > 0);
}

/** Breaks the socket without a word. `end()` would wait for an answer that a partition never lets through. */
export function breakSocket(client: DriverClient): void {
  const { stream } = client.connection;
  if (stream.ws?.terminate) stream.ws.terminate();
  stream.destroy();
}
