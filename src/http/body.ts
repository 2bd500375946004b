import type { HonoRequest } from 'hono';
import { bodyLimit } from 'hono/body-limit';
import * as v from 'valibot';
import { readJson } from './json.ts';
import { Problem } from './problem.ts';

/** This module's secret: how the JSON object that a request brings is read. */

/** A body may be somewhat larger than its params. */
export const largestBody = 96 * 1024;

/** Ends the reading of a body that goes on for too long. */
export const limitBody = bodyLimit({ maxSize: largestBody, onError: () => tooLarge().response() });

export function tooLarge(): Problem {
  return new Problem(
    413,
    'params_too_large',
    'params may have 64 KB of JSON; store more elsewhere and pass its name.',
  );
}

/**
 * Nothing at all counts as an empty object.
 * @throws {Problem} 413, 415, 400 with `expected` where it is of another shape, and with `pointer` where that is known
 */
export async function readObject<E extends v.ObjectEntries>(
  request: HonoRequest,
  entries: E,
  expected: string,
): Promise<v.InferOutput<v.ObjectSchema<E, undefined>>> {
  const bytes = new Uint8Array(await request.arrayBuffer());
  if (bytes.length > largestBody) throw tooLarge(); // whatever its headers said
  if (bytes.length > 0) demandJson(request.header('content-type'));
  const body = bytes.length === 0 ? {} : readJson(bytes);
  if (!isObject(body)) throw new Problem(400, 'bad_body', expected);
  // `__proto__` and `constructor` are members of any object: only own ones count.
  if (!Object.keys(body).every((key) => Object.hasOwn(entries, key)))
    throw new Problem(400, 'bad_body', expected);
  const read = v.safeParse(v.object(entries), body);
  if (read.success) return read.output;
  const [{ path }] = read.issues;
  const pointer = (path ?? []).map(({ key }) => `/${String(key)}`).join('');
  throw new Problem(400, 'bad_body', expected, { extensions: { pointer } });
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function demandJson(contentType = ''): void {
  const [mediaType = ''] = contentType.split(';');
  if (mediaType.trim().toLowerCase() === 'application/json') return;
  throw new Problem(415, 'media_type', 'Send the body as Content-Type: application/json.', {
    headers: { 'accept-post': 'application/json' },
  });
}
