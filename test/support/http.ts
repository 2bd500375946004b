/** The HTTP app as a client meets it: in this process, or behind a server of Node's. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { inspect } from 'node:util';
import { expect } from 'vitest';
import { createApp, type HttpOptions } from '../../src/http/app.ts';
import { Refusals } from '../../src/http/refusals.ts';
import { Session } from '../../src/postgres/session.ts';
import type { Logger } from '../../src/run.ts';
import type { RunRequest } from '../../src/trigger.ts';
import { jobs } from './runs.ts';

export const tokens = {
  read: 'read-token-0123456789',
  run: 'run-token-0123456789+/=',
  wrong: 'wrong-token-0123456789',
} as const;

export const openAt = (url: string) => async () =>
  Session.open({ url, driver: 'pg', connectTimeoutMs: 5_000 });

export type App = ReturnType<typeof createApp>;

export interface Asked {
  readonly method?: string;
  readonly token?: string | null;
  readonly headers?: Record<string, string>;
  /** Bytes and texts are sent as they are, anything else as JSON. */
  readonly body?: unknown;
  readonly app?: App;
}

export interface Answered {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  readonly json: Record<string, unknown>;
}

/** An app on a database, what it was asked to start, and what it logged. */
export function client(url: string, now = new Date('2026-11-29T14:00:00Z')) {
  const started: RunRequest[] = [];
  const logged: { readonly level: string; readonly text: string }[] = [];
  const log =
    (level: string) =>
    (...said: unknown[]) =>
      void logged.push({ level, text: inspect(said, { depth: 12 }) });
  const logger: Logger = { debug: log('debug'), info: log('info'), warn: log('warn'), error: log('error') };

  const appWith = (changes: Partial<HttpOptions> = {}) =>
    createApp({
      registry: jobs,
      readTokens: [tokens.read],
      runTokens: [tokens.run],
      openSession: openAt(url),
      startRun: async (request) => void started.push(request),
      now: () => now,
      logger,
      refusals: new Refusals({ firstMs: 0 }),
      ...changes,
    });

  const ask = async (path: string, asked: Asked = {}): Promise<Answered> => {
    const { method = 'GET', token = tokens.run, headers, body, app = appWith() } = asked;
    const response = await app.request(path, {
      method,
      headers: {
        ...(token === null ? {} : { authorization: `Bearer ${token}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: bodyOf(body) }),
    });
    const text = await response.text();
    const isJson = response.headers.get('content-type')?.includes('json') === true && text !== '';
    const json = isJson ? (JSON.parse(text) as Record<string, unknown>) : {};
    return { status: response.status, headers: response.headers, text, json };
  };
  const post = async (path: string, body?: unknown, more: Asked = {}) =>
    ask(path, { method: 'POST', body, ...more });

  return { started, logged, appWith, ask, post };
}

function bodyOf(body: unknown): string | Uint8Array<ArrayBuffer> {
  if (body instanceof Uint8Array) return new Uint8Array(body);
  return typeof body === 'string' ? body : JSON.stringify(body);
}

export function expectProblem(answer: Answered, status: number, code: string, more: object = {}): void {
  expect(answer.json).toMatchObject({ type: 'about:blank', status, code, ...more });
  expect(Object.keys(answer.json)).toEqual(expect.arrayContaining(['title', 'detail']));
  expect(answer.status).toBe(status);
  expect(answer.headers.get('content-type')).toBe('application/problem+json');
}

export interface Served {
  readonly port: number;
  readonly origin: string;
  close(): void;
}

/** A server of Node's before the app. What no Request can be made of it answers with 400 by itself. */
export async function serve(app: App): Promise<Served> {
  const server = createServer((incoming, outgoing) => {
    answer(app, incoming, outgoing).catch(() => outgoing.destroy());
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    port,
    origin: `http://127.0.0.1:${port}`,
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
}

async function answer(app: App, incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
  let request: Request;
  try {
    request = requestOf(incoming);
  } catch {
    outgoing.writeHead(400).end();
    return;
  }
  const response = await app.fetch(request, { incoming });
  const body = Buffer.from(await response.arrayBuffer());
  outgoing.writeHead(response.status, Object.fromEntries(response.headers)).end(body);
}

function requestOf(incoming: IncomingMessage): Request {
  const { method = 'GET', url = '/', rawHeaders } = incoming;
  const headers = new Headers();
  for (let index = 0; index < rawHeaders.length; index += 2)
    headers.append(rawHeaders[index] ?? '', rawHeaders[index + 1] ?? '');
  const hasBody = !['GET', 'HEAD'].includes(method);
  const body = hasBody ? { body: Readable.toWeb(incoming) as ReadableStream, duplex: 'half' } : {};
  return new Request(new URL(url, 'http://127.0.0.1'), { method, headers, ...body } as RequestInit);
}
