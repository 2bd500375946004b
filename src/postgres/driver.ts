import type { QueryConfig, QueryResult } from 'pg';
export type { Pool, PoolClient, QueryConfig, QueryResult, QueryResultRow } from 'pg';
import { isServerError } from './errors.ts';

export type DriverName = 'pg' | 'neon';

/** Where and how to reach the server. */
export interface Target {
  /** postgres:// URL. Holds the password, so it never enters an error or a log line. */
  readonly url: string;
  readonly driver: DriverName;
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
  connect(): Promise<unknown>;
  query(query: QueryConfig | string, values?: unknown[]): Promise<QueryResult | QueryResult[]>;
  end(): Promise<void>;
  on(event: 'error', listener: (error: unknown) => void): unknown;
  on(event: 'end', listener: () => void): unknown;
  escapeLiteral(text: string): string;
}

/** Each driver is a chunk of its own: a Neon URL never loads `pg`, nor the other way round. */
export async function makeClient(target: Target): Promise<DriverClient> {
  return target.driver === 'neon' ? makeNeonClient(target) : makePgClient(target);
}

async function makePgClient(target: Target): Promise<DriverClient> {
  const { default: pg } = await import('pg');
  return new pg.Client({
    connectionString: target.url,
    connectionTimeoutMillis: target.connectTimeoutMs,
    keepAlive: true,
    ...(target.applicationName === undefined ? {} : { application_name: target.applicationName }),
  });
}

async function makeNeonClient(target: Target): Promise<DriverClient> {
  const { Client } = await import('@neondatabase/serverless');
  const client = new Client({
    connectionString: target.url,
    connectionTimeoutMillis: target.connectTimeoutMs,
    ...(target.applicationName === undefined ? {} : { application_name: target.applicationName }),
  });
  if (typeof WebSocket === 'undefined') client.neonConfig.webSocketConstructor = (await import('ws')).default;
  if (target.relay !== undefined) {
    const relay = target.relay;
    client.neonConfig.wsProxy = (host, port) => `${relay}${host}:${String(port)}`;
    client.neonConfig.useSecureWebSocket = false;
    client.neonConfig.pipelineTLS = false;
    client.neonConfig.forceDisablePgSSL = true;
  }
  return client;
}

type Answer = Promise<QueryResult | QueryResult[]>;

/** After an error of its own between Parse and Sync, the neon driver forgets the Sync; the server then waits for it. */
export async function queryAny(
  client: DriverClient,
  driver: DriverName,
  query: QueryConfig | string,
  values?: unknown[],
): Answer {
  if (driver === 'pg') return client.query(query, values);
  return client.query(query, values).catch((error: unknown) => {
    if (!isServerError(error)) sync(client);
    throw error;
  });
}

/**
 * By the extended protocol, which takes one statement a message. `pg` has a mode for that; the neon driver uses it
 * where a number of rows is named, and then leaves the Sync out after any error.
 */
export async function queryAlone(
  client: DriverClient,
  driver: DriverName,
  query: QueryConfig | string,
): Answer {
  const config = typeof query === 'string' ? { text: query } : query;
  if (driver === 'pg') return client.query({ ...config, queryMode: 'extended' } as QueryConfig);
  return client.query({ ...config, rows: 0x7fffffff } as QueryConfig).catch((error: unknown) => {
    sync(client);
    throw error;
  });
}

function sync(client: DriverClient): void {
  (client as unknown as { connection: { sync(): void } }).connection.sync();
}

/** Breaks the socket without a word. `end()` would wait for an answer that a partition never lets through. */
export function breakSocket(client: DriverClient): void {
  const { stream } = (client as unknown as { connection: { stream: BreakableStream } }).connection;
  if (stream.ws?.terminate) stream.ws.terminate();
  stream.destroy();
}

interface BreakableStream {
  destroy(): void;
  /** The neon driver's; only the `ws` package can terminate, a browser's WebSocket just closes. */
  readonly ws?: { terminate?(): void };
}
