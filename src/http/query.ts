import type { Context, MiddlewareHandler } from 'hono';
import { isStorable } from '../capture.ts';
import { Problem } from './problem.ts';

/**
 * This module's secret: how a request's path and query are read. Strictly, since a name with a slip in it would quietly
 * answer too much, or start something else than was meant; and no name that is none here is repeated.
 */

/** Each once. @throws {Problem} 400 */
export function queryIn(c: Context, known: readonly string[]): Readonly<Record<string, string>> {
  const read = new Map<string, string>();
  for (const pair of new URL(c.req.url).search.slice(1).split('&').filter(Boolean)) {
    const [, rawName = '', rawValue = ''] = /^([^=]*)=?(.*)$/.exec(pair) ?? [];
    const name = decoded(rawName) ?? '';
    if (!known.includes(name)) throw badQuery(known, noneHere(known));
    if (read.has(name)) throw badQuery(known, `Give ${name} once.`, name);
    const value = decoded(rawValue);
    if (value === undefined)
      throw badQuery(known, `${name} is no percent-encoded UTF-8 text without NUL.`, name);
    read.set(name, value);
  }
  return Object.fromEntries(read);
}

function noneHere(known: readonly string[]): string {
  return known.length === 0
    ? 'Here is nothing to be given in the query.'
    : 'In the query is a name that is none here.';
}

/** @param parameter the name that is at fault, which is one of `known` */
export function badQuery(known: readonly string[], detail: string, parameter?: string): Problem {
  const place = parameter === undefined ? {} : { parameter };
  return new Problem(400, 'bad_query', detail, { extensions: { ...place, known } });
}

/** Of a route that takes none: who gives a slot there meant it for the body. */
export const noQuery: MiddlewareHandler = async (c, next) => {
  queryIn(c, []);
  await next();
};

export const cleanPath: MiddlewareHandler = async (c, next) => {
  if (decoded(c.req.path.replaceAll('+', '%2B')) === undefined)
    throw new Problem(400, 'bad_path', 'The path is no percent-encoded UTF-8 text without NUL.');
  await next();
};

function decoded(raw: string): string | undefined {
  try {
    const text = decodeURIComponent(raw.replaceAll('+', ' '));
    return isStorable(text) ? text : undefined;
  } catch {
    return undefined;
  }
}
