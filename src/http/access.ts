import { createHash, timingSafeEqual } from 'node:crypto';
import type { Context, MiddlewareHandler } from 'hono';
import { matchedRoutes } from 'hono/route';
import type { Logger } from '../run.ts';
import { Problem } from './problem.ts';
import type { Refusals } from './refusals.ts';

/**
 * This module's secret: who may come in. Without a token that is known nobody does, and where none is configured that
 * means nobody at all.
 */

/** `run` includes `read`. */
export type Scope = 'read' | 'run';

export interface Caller {
  readonly scope: Scope;
  /** Which token it was, by its place in the settings: it goes into records, where no part of a token may go. */
  readonly name: string;
}

export interface Caught {
  Variables: { caller: Caller };
}

export interface Tokens {
  readonly readTokens: readonly string[];
  readonly runTokens: readonly string[];
}

/** What keeps those out who try. */
export interface Guarding {
  /** The address that a request came from, where that is known. */
  readonly sourceOf: (c: Context) => string | null;
  readonly refusals: Refusals;
}

interface Key {
  readonly digest: Buffer;
  readonly caller: Caller;
}

/** Finds out who is calling, or answers 401, always with one body, whatever was wrong. */
export function authenticate(
  options: Tokens & Guarding & { readonly logger: Logger },
): MiddlewareHandler<Caught> {
  const keys = [...keysOf(options.runTokens, 'run'), ...keysOf(options.readTokens, 'read')];
  return async (c, next) => {
    if (keys.length === 0) throw noTokenConfigured();
    const authorization = c.req.header('authorization');
    const isRead = c.req.method === 'GET' || c.req.method === 'HEAD';
    const caller = callerOf(tokenIn(authorization, isRead), keys);
    const isPage = isRead && c.req.path === '/' && (c.req.header('accept')?.includes('text/html') ?? false);
    if (!caller && authorization !== undefined) await discourage(c, options);
    if (!caller) throw unauthorized(isPage, authorization !== undefined);
    c.set('caller', caller);
    await next();
  };
}

/** Of the request there is nothing in the log that could hold a token: its route and not its path. */
async function discourage(
  c: Context,
  { sourceOf, refusals, logger }: Guarding & { readonly logger: Logger },
): Promise<void> {
  const source = sourceOf(c);
  const route = matchedRoutes(c).findLast(({ method }) => method !== 'ALL')?.path ?? 'none';
  const { method } = c.req;
  logger.warn('a token was refused', { source, method: method.slice(0, 20), route });
  await refusals.slowDown(source ?? '');
}

/** Answers 403 to a caller who may only read. */
export const mayRun: MiddlewareHandler<Caught> = async (c, next) => {
  if (c.get('caller').scope !== 'run')
    throw new Problem(403, 'scope', 'This token may read; starting runs takes one with the scope run.', {
      headers: { 'www-authenticate': 'Bearer realm="cronce", error="insufficient_scope", scope="run"' },
    });
  await next();
};

/** An empty token would let an empty password in, so it is none. */
function keysOf(tokens: readonly string[], scope: Scope): Key[] {
  return tokens
    .map((token, index) => ({ token, caller: { scope, name: `${scope} token ${index + 1}` } }))
    .filter(({ token }) => token !== '')
    .map(({ token, caller }) => ({ digest: digestOf(token), caller }));
}

/** Compared as digests, so that length tells nothing, and with every key, so that time tells nothing. */
function callerOf(token: string | undefined, keys: readonly Key[]): Caller | undefined {
  if (token === undefined) return undefined;
  const digest = digestOf(token);
  return keys.filter((key) => timingSafeEqual(key.digest, digest))[0]?.caller;
}

function digestOf(token: string): Buffer {
  return createHash('sha256').update(token).digest();
}

/**
 * A bearer token; or, for a browser that looks at the page, the password of Basic. A browser sends that one along by
 * itself, also on a form of another site's, so it counts for requests that change nothing, and for no others.
 */
function tokenIn(authorization: string | undefined, isRead: boolean): string | undefined {
  const [, scheme = '', given = ''] = /^(\w+) +(\S.*)$/.exec(authorization ?? '') ?? [];
  switch (scheme.toLowerCase()) {
    case 'bearer':
      return given;
    case 'basic':
      return isRead ? passwordIn(given) : undefined;
    default:
      return undefined;
  }
}

function passwordIn(given: string): string | undefined {
  const pair = Buffer.from(given, 'base64').toString();
  const colon = pair.indexOf(':');
  return colon === -1 ? undefined : pair.slice(colon + 1);
}

function noTokenConfigured(): Problem {
  const detail =
    'No token is configured, so nobody may come in; set CRONCE_READ_TOKENS or CRONCE_RUN_TOKENS.';
  return new Problem(401, 'no_token_configured', detail, {
    headers: { 'www-authenticate': 'Bearer realm="cronce"' },
  });
}

function unauthorized(isPage: boolean, wasTried: boolean): Problem {
  const bearer = `Bearer realm="cronce"${wasTried ? ', error="invalid_token"' : ''}`;
  return new Problem(
    401,
    'unauthorized',
    'Send a token that is known here, as Authorization: Bearer <token>.',
    {
      headers: {
        'www-authenticate': isPage ? 'Basic realm="cronce", charset="UTF-8"' : bearer,
      },
    },
  );
}
