/** The HTTP app as a client meets it, without a network. */
import { inspect } from 'node:util';
import { expect } from 'vitest';
import { createApp, type HttpOptions } from '../../src/http/app.ts';
import { Refusals } from '../../src/http/refusals.ts';
import { Session } from '../../src/postgres/session.ts';
import type { Logger } from '../../src/run.ts';
import type { RunRequest } from '../../src/path/trigger.ts';
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

export interface ClientOptions {
  readonly now?: Date;
  readonly changes?: Partial<HttpOptions>;
  /** Is given whatever is answered or logged. */
  readonly tell?: (text: string) => void;
}

/** An app on a database, what it was asked to start, and what it logged. */
export function client(
  url: string,
  {
    now = new Date('2026-11-29T14:00:00Z'),
    changes: always = {},
    tell = () => undefined,
  }: ClientOptions = {},
) {
  const started: RunRequest[] = [];
  const logged: { readonly level: string; readonly text: string }[] = [];
  const log =
    (level: string) =>
    (...said: unknown[]) => {
      const text = inspect(said, { depth: 12 });
      logged.push({ level, text });
      tell(text);
    };
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
      ...always,
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
    for (const one of [text, inspect([...response.headers])]) tell(one);
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
