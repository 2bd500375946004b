import type { HonoRequest } from 'hono';
import { v7 as uuidV7 } from 'uuid';
import * as v from 'valibot';
import { captureValue } from '../capture.ts';
import { dueAt, type DueRecord } from '../sweep/due.ts';
import { instantOf } from '../calendar/instant.ts';
import type { Job } from '../job.ts';
import { checkParams } from '../params.ts';
import type { Json } from '../run.ts';
import { isReason, slotName, type RunRequest } from '../path/trigger.ts';
import { readObject, tooLarge } from './body.ts';
import { fingerprintOf, keyIn } from './key.ts';
import { Problem } from './problem.ts';

/**
 * This module's secret: how `POST /jobs/:name/runs` says which slot is to run, and with what. Whatever it says wrong
 * is refused here, before anything is started.
 */

const largestParams = 64 * 1024;
/** API Gateway gives an answer up after 30 s. */
const longestWaitS = 25;

export interface Surroundings {
  readonly requestedBy: string;
  readonly now: Date;
  readonly dueRecord: (job: string, slot: string) => Promise<DueRecord>;
}

export interface ManualRun {
  readonly request: RunRequest;
  /** Null where the request may be made again, and is another one then. */
  readonly key: { readonly name: string; readonly fingerprint: string } | null;
}

interface Asked {
  readonly params: Json | undefined;
  readonly slot?: string;
  readonly scheduledFor: string | null;
  readonly reason: string | null;
}

/** @throws {Problem} */
export async function readManualRun(
  request: HonoRequest,
  job: Job,
  around: Surroundings,
): Promise<ManualRun> {
  const body = await readObject(request, bodyShape, bodyWords);
  const params = body.params === undefined ? undefined : checked(body.params);
  await demandFit(job, params ?? null);
  const asked = { ...body, ...timeIn(body, around.now), params };
  const key = keyIn(request.header('idempotency-key'));
  if (body.slot !== undefined && key !== undefined)
    throw new Problem(
      400,
      'key_and_slot',
      'Give slot or an Idempotency-Key: each names the slot, so only one can.',
    );
  const slot = body.slot === undefined ? undefined : await scheduledSlot(body.slot, job, around);
  const { reason = null, scheduledFor } = asked;
  const whole = { job: job.name, params: params ?? null, scheduledFor, reason };
  return {
    request: requestFor(job, { ...asked, reason, slot: slot ?? `manual:${key ?? uuidV7()}` }, around),
    key: key === undefined ? null : { name: key, fingerprint: fingerprintOf(whole) },
  };
}

function requestFor(
  { name }: Job,
  { params, slot, scheduledFor, reason }: Required<Asked>,
  { requestedBy, now }: Surroundings,
): RunRequest {
  // An event may be delivered twice, hours apart: what it is reckoned from stays the same.
  const due = slot.startsWith('manual:') ? (scheduledFor ?? now.toISOString()) : slot;
  const why = reason === null ? {} : { reason };
  return {
    cronce: {
      job: name,
      trigger: 'manual',
      slot,
      scheduledFor: due,
      requestedBy,
      ...why,
      ...(params === undefined ? {} : { params }),
    },
  };
}

/** What can be stored and shown as it is. */
export const reasonShape = v.optional(v.pipe(v.string(), v.check(isReason)));

const bodyShape = {
  params: v.optional(v.unknown()),
  slot: v.optional(v.string()),
  scheduledFor: v.optional(v.string()),
  reason: reasonShape,
};
const bodyWords =
  'The body is an object with, at most, params (any JSON), slot or scheduledFor (a time each), and reason (a text ' +
  'of 1 to 500 characters without control characters).';

/** A job shall get what was sent: what would be cut or replaced on its way into the record is refused instead. */
function checked(params: unknown): Json {
  const text = JSON.stringify(params);
  if (Buffer.byteLength(text) > largestParams) throw tooLarge();
  const kept = captureValue(params);
  if (JSON.stringify(kept) === text) return kept;
  const limits = 'at most 1,000 entries in each level and 20,000 values in all';
  throw new Problem(
    422,
    'params_not_storable',
    `params can’t be stored as they are; they may have ${limits}.`,
    { extensions: { pointer: '/params' } },
  );
}

/** What its run would refuse is refused at once; the run is given what was sent, and reads it by itself. */
async function demandFit({ params: schema }: Job, given: Json): Promise<void> {
  const fit = await checkParams(schema, given);
  if (!('issues' in fit)) return;
  const issues = fit.issues.map(({ pointer, message }) => ({ pointer: `/params${pointer}`, message }));
  throw new Problem(422, 'params_invalid', 'params don’t fit what this job takes; issues says where.', {
    extensions: { pointer: issues[0]?.pointer, issues },
  });
}

// --- times --------------------------------------------------------------------------------------

/** The time that a run by hand is reckoned from, where it shall be another than now: to do over what was done once. */
function timeIn(
  { slot, scheduledFor }: { readonly slot?: string | undefined; readonly scheduledFor?: string | undefined },
  now: Date,
): { scheduledFor: string | null } {
  if (scheduledFor === undefined) return { scheduledFor: null };
  if (slot !== undefined)
    throw new Problem(
      400,
      'slot_and_time',
      'Give slot or scheduledFor: a slot has its time, and a run with a time of its own is a slot of its own.',
      { extensions: { pointer: '/scheduledFor' } },
    );
  const at = instantOf(scheduledFor);
  if (!at) throw badTime('scheduledFor is a time such as 2026-11-29T12:00:00Z, in the years 1970 to 2199.');
  if (at > now) throw badTime('scheduledFor is still to come.');
  return { scheduledFor: at.toISOString() };
}

function badTime(detail: string): Problem {
  return new Problem(422, 'bad_time', detail, { extensions: { pointer: '/scheduledFor' } });
}

/** Only what was due can be run again: a slip in the time would otherwise make a slot that never was one. */
async function scheduledSlot(given: string, job: Job, around: Surroundings): Promise<string> {
  const at = slotTime(given);
  if (!at) throw badSlot('slot is the time of an occurrence, such as 2026-11-29T12:00:00Z.');
  const slot = slotName(at);
  const record = await around.dueRecord(job.name, slot);
  if (record.isKnown && at <= around.now) return slot;
  const { isDue, nearest, lacksPhase } = dueAt(at, job, record, around.now);
  if (isDue) return slot;
  const place = { nearest: nearest.map(slotName) };
  if (at > around.now)
    throw badSlot('That slot is still to come, and will be delivered when it is due.', place);
  if (job.schedules.length === 0) throw badSlot('This job has no schedule, so no slot of it was ever due.');
  if (nearest.length > 0)
    throw badSlot('This job was not due at that time; nearest says when it was.', place);
  throw badSlot(
    lacksPhase ? withoutPhase : 'No slot of this job has been due yet, as far as is known.',
    place,
  );
}

const withoutPhase =
  'When a rate() is due is known once it was delivered, and this one never was; start a run without slot.';

function badSlot(detail: string, extensions: Readonly<Record<string, unknown>> = {}): Problem {
  return new Problem(422, 'bad_slot', detail, { extensions: { pointer: '/slot', ...extensions } });
}

/** To the second, as slots are. */
export function slotTime(text: string): Date | undefined {
  const at = instantOf(text);
  return at && new Date(Math.floor(at.getTime() / 1_000) * 1_000);
}

/** Seconds to wait for the outcome, from `Prefer: wait=N` (RFC 7240): a preference, so a wrong one is none. */
export function waitIn(prefer: string | undefined): number {
  const [, seconds = '0'] = /(?:^|,)\s*wait\s*=\s*"?(\d{1,6})"?\s*(?:[,;]|$)/i.exec(prefer ?? '') ?? [];
  return Math.min(Number(seconds), longestWaitS);
}
