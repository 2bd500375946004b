import type { HonoRequest } from 'hono';
import { v7 as uuidV7 } from 'uuid';
import * as v from 'valibot';
import type { Job } from '../job.ts';
import { matches, previousAtOrBefore } from '../occurrences.ts';
import type { Json } from '../run.ts';
import { captureValue } from '../capture.ts';
import { slotName, type RunRequest } from '../trigger.ts';
import { Problem } from './problem.ts';

/**
 * This module's secret: how `POST /jobs/:name/runs` says which slot is to run, and with what. Whatever it says wrong
 * is refused here, before anything is started.
 */

/** A body may be somewhat larger than its params. */
export const largestBody = 96 * 1024;
const largestParams = 64 * 1024;
/** API Gateway gives an answer up after 30 s. */
const longestWaitS = 25;

export interface Surroundings {
  readonly requestedBy: string;
  readonly now: Date;
  /** Whether the history has a run of this slot: schedules change, and old slots stay what they were. */
  readonly isKnownSlot: (job: string, slot: string) => Promise<boolean>;
}

/** @throws {Problem} */
export async function readManualRun(
  request: HonoRequest,
  job: Job,
  around: Surroundings,
): Promise<RunRequest> {
  const { params, slot: due } = await readBody(request);
  const key = keyIn(request.header('idempotency-key'));
  if (due !== undefined && key !== undefined)
    throw new Problem(
      400,
      'key_and_slot',
      'Give slot or an Idempotency-Key: each names the slot, so only one can.',
    );
  const slot = due === undefined ? `manual:${key ?? uuidV7()}` : await scheduledSlot(due, job, around);
  const { requestedBy, now } = around;
  return {
    cronce: {
      job: job.name,
      trigger: 'manual',
      slot,
      // An event may be delivered twice, hours apart: what it is reckoned from stays the same.
      ...(due === undefined ? { scheduledFor: now.toISOString() } : {}),
      requestedBy,
      ...(params === undefined ? {} : { params }),
    },
  };
}

export function tooLarge(): Problem {
  return new Problem(
    413,
    'params_too_large',
    'params may have 64 KB of JSON; store more elsewhere and pass its name.',
  );
}

const bodyShape = v.strictObject({ params: v.optional(v.unknown()), slot: v.optional(v.string()) });
const bodyWords = 'The body is an object with, at most, params (any JSON) and slot (a text).';

async function readBody(request: HonoRequest): Promise<{ params?: Json; slot?: string }> {
  const { params, slot } = await readObject(request, bodyShape, bodyWords);
  return {
    ...(params === undefined ? {} : { params: checked(params) }),
    ...(slot === undefined ? {} : { slot }),
  };
}

/**
 * The JSON object that a request brings; nothing at all counts as an empty one.
 * @throws {Problem} 415, 400 with `expected` where it is of another shape
 */
export async function readObject<T>(
  request: HonoRequest,
  shape: v.GenericSchema<unknown, T>,
  expected: string,
): Promise<T> {
  const text = await request.text();
  const [mediaType = ''] = (request.header('content-type') ?? '').split(';');
  if (text !== '' && mediaType.trim().toLowerCase() !== 'application/json')
    throw new Problem(415, 'media_type', 'Send the body as Content-Type: application/json.', {
      headers: { 'accept-post': 'application/json' },
    });
  const body = text === '' ? {} : parse(text);
  // To `strictObject` alone an array passes for an object without members.
  const read = Array.isArray(body) ? undefined : v.safeParse(shape, body);
  if (!read?.success) throw new Problem(400, 'bad_body', expected);
  return read.output;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Problem(400, 'not_json', 'The body is not JSON.');
  }
}

/** A job shall get what was sent: what would be cut or replaced on its way into the record is refused instead. */
function checked(params: unknown): Json {
  const text = JSON.stringify(params);
  if (Buffer.byteLength(text) > largestParams) throw tooLarge();
  const kept = captureValue(params);
  if (JSON.stringify(kept) === text) return kept;
  const limits =
    'at most 12 levels, 1,000 entries in each and 20,000 values in all, and texts without NUL and lone surrogates';
  throw new Problem(
    422,
    'params_not_storable',
    `params can’t be stored as they are; they may have ${limits}.`,
  );
}

function keyIn(header: string | undefined): string | undefined {
  if (header === undefined || /^[\x20-\x7e]{1,200}$/.test(header)) return header;
  throw new Problem(400, 'bad_key', 'An Idempotency-Key has 1 to 200 printable ASCII characters.');
}

/** Only what was due can be run again: a slip in the time would otherwise make a slot that never was one. */
async function scheduledSlot(given: string, job: Job, around: Surroundings): Promise<string> {
  const at = timeOf(given);
  if (!at) throw badSlot('slot is the time of an occurrence, such as 2026-11-29T12:00:00Z.');
  if (at > around.now) throw badSlot('That slot is still to come, and will be delivered when it is due.');
  const slot = slotName(at);
  const isDue = job.schedules.some(({ schedule, timeZone }) => matches(schedule, at, timeZone));
  if (isDue || (await around.isKnownSlot(job.name, slot))) return slot;
  if (job.schedules.length === 0) throw badSlot('This job has no schedule, so no slot of it was ever due.');
  const dueBefore = job.schedules
    .map(({ schedule, timeZone }) => previousAtOrBefore(schedule, at, timeZone))
    .flatMap((time) => (time ? [slotName(time)] : []));
  throw badSlot('This job was not due at that time.', { dueBefore });
}

function badSlot(detail: string, extensions: Readonly<Record<string, unknown>> = {}): Problem {
  return new Problem(422, 'bad_slot', detail, { extensions });
}

/** To the second, as slots are. A day that its month doesn't have would roll over into the next. */
function timeOf(text: string): Date | undefined {
  const [, day] = /^(\d{4}-\d\d-\d\d)T\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)$/.exec(text) ?? [];
  const midnight = new Date(`${day ?? ''}T00:00:00Z`);
  const ms = Date.parse(text);
  if (Number.isNaN(ms) || Number.isNaN(midnight.getTime())) return undefined;
  return midnight.toISOString().startsWith(day ?? '-') ? new Date(Math.floor(ms / 1_000) * 1_000) : undefined;
}

/** Seconds to wait for the outcome, from `Prefer: wait=N` (RFC 7240): a preference, so a wrong one is none. */
export function waitIn(prefer: string | undefined): number {
  const [, seconds = '0'] = /(?:^|,)\s*wait\s*=\s*"?(\d{1,6})"?\s*(?:[,;]|$)/i.exec(prefer ?? '') ?? [];
  return Math.min(Number(seconds), longestWaitS);
}
