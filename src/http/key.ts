import { createHash } from 'node:crypto';
import { canonical } from '../lock-name.ts';
import type { Json } from '../run.ts';
import { Problem } from './problem.ts';

/**
 * This module's secret: how an `Idempotency-Key` is written (draft-ietf-httpapi-idempotency-key-header), and what makes
 * two requests one.
 */

/**
 * A string of RFC 8941, so in quotes; without them it is the same key, since most clients leave them out.
 * @throws {Problem} 400
 */
export function keyIn(header: string | undefined): string | undefined {
  if (header === undefined) return undefined;
  const given = header.trim();
  const key = given.startsWith('"') ? unquoted(given) : given;
  if (key !== undefined && /^[\x20-\x7e]{1,200}$/.test(key)) return key;
  const detail = 'An Idempotency-Key is a text of 1 to 200 printable ASCII characters in double quotes.';
  throw new Problem(400, 'bad_key', detail, { extensions: { header: 'idempotency-key' } });
}

/** Only `\"` and `\\` are escapes. */
function unquoted(text: string): string | undefined {
  const [, inner] = /^"((?:[^"\\]|\\["\\])*)"$/.exec(text) ?? [];
  return inner?.replaceAll(/\\(["\\])/g, '$1');
}

export interface Fingerprinted {
  readonly job: string;
  readonly params: Json;
  readonly scheduledFor: string | null;
  readonly reason: string | null;
}

/** Of all that a request asks for, however the keys of its objects were ordered. */
export function fingerprintOf({ job, params, scheduledFor, reason }: Fingerprinted): string {
  const all = { job, params: canonical(params), scheduledFor, reason };
  return createHash('sha256').update(JSON.stringify(all)).digest('hex');
}
