import type { Job, Registry } from './job.ts';
import type { Json, TriggerKind } from './run.ts';
import { captureValue } from './capture.ts';

/**
 * This step's secret: which job and which slot an invocation is about.
 *
 * A slot is known by the time at which it was due and never by anything of the delivery: two targets or regions give
 * one occurrence two event ids, each attempt of EventBridge Scheduler has an execution id of its own, and each
 * invocation a request id of its own.
 */
export interface Delivery {
  readonly job: Job;
  readonly slot: string;
  readonly scheduledFor: Date;
  readonly slotGuessed: boolean;
  readonly trigger: TriggerKind;
  /** A person asked for it: it may run though paused or late, and repeat a slot that has failed for good. */
  readonly byHand: boolean;
  readonly deliveryId: string | null;
  readonly requestedBy: string | null;
  readonly params: Json;
}

/** What the HTTP entry and the sweep send to a job's function. */
export interface RunRequest {
  readonly cronce: {
    readonly job: string;
    readonly trigger: 'manual' | 'sweep';
    /** `manual:<key>`, or the time of an occurrence. */
    readonly slot: string;
    readonly requestedBy?: string;
    readonly params?: Json;
  };
}

/** An event that names no job we know, or a request that is none. */
export class TriggerError extends Error {
  override readonly name = 'TriggerError';
}

interface Surroundings {
  readonly registry: Registry;
  /** The job that this function was deployed for, for events that name none. */
  readonly ownJob: string | null;
  readonly deliveryId: string | null;
  readonly now: Date;
}

/**
 * Understands rule events, `inputTransformer` shapes, EventBridge Scheduler payloads, run requests, and events with
 * nothing in them.
 * @throws {TriggerError}
 */
export function deliveryOf(event: unknown, around: Surroundings): Delivery {
  const fields = fieldsOf(event);
  const request = fieldsOf(fields['cronce']);
  if ('job' in request) return requested(request, around);
  const job = findJob(text(fields['job']) ?? around.ownJob, around.registry);
  const due = timeOf(fields['scheduledTime']) ?? timeOf(fields['time']);
  const scheduledFor = due ? occurrence(due, job, fields['schedule']) : floor(around.now, 60_000);
  return {
    job,
    scheduledFor,
    slot: slotName(scheduledFor),
    slotGuessed: due === undefined,
    trigger: kindOf(fields, job),
    byHand: false,
    deliveryId: around.deliveryId,
    requestedBy: null,
    params: captureValue(fields['params']),
  };
}

function requested(request: Fields, around: Surroundings): Delivery {
  const slot = text(request['slot']);
  if (slot === undefined) throw new TriggerError('a run request without a slot; give manual:<key> or a time');
  const manual = slot.startsWith('manual:');
  const due = timeOf(slot);
  if (!manual && !due)
    throw new TriggerError(`slot ${JSON.stringify(slot)} is neither manual:<key> nor a time`);
  return {
    job: findJob(text(request['job']), around.registry),
    slot: due ? slotName(due) : slot,
    scheduledFor: due ?? around.now,
    slotGuessed: false,
    trigger: request['trigger'] === 'sweep' ? 'sweep' : 'manual',
    byHand: request['trigger'] !== 'sweep',
    deliveryId: around.deliveryId,
    requestedBy: text(request['requestedBy']) ?? null,
    params: captureValue(request['params']),
  };
}

/**
 * A rule fires within its minute, so a cron occurrence is the minute. The phase of `rate()` is set to the second when
 * the rule is made: flooring it to the minute could merge two slots.
 */
function occurrence(due: Date, job: Job, index: unknown): Date {
  const schedule = job.schedules[typeof index === 'number' ? index : 0]?.schedule;
  return floor(due, schedule?.kind === 'rate' ? 1_000 : 60_000);
}

/** `2026-11-29T12:00:00Z`. */
export function slotName(scheduledFor: Date): string {
  return scheduledFor.toISOString().replace(/\.\d+Z$/, 'Z');
}

function findJob(name: string | null | undefined, registry: Registry): Job {
  const job = registry.get(name ?? '');
  if (job) return job;
  const known = [...registry.keys()].join(', ');
  throw new TriggerError(
    `${name ? `no job is named ${JSON.stringify(name)}` : 'the event names no job'}; known: ${known}`,
  );
}

function kindOf(fields: Fields, job: Job): TriggerKind {
  if (fields['source'] === 'aws.events') return 'rule';
  if (fields['source'] === 'aws.scheduler') return 'scheduler';
  if (fields['scheduledTime'] === undefined) return 'unknown';
  const index = typeof fields['schedule'] === 'number' ? fields['schedule'] : 0;
  return job.schedules[index]?.via ?? 'unknown';
}

/** ISO 8601 only: an emulator hands over Scheduler's keywords as literal text, and Date would read a bare "2" as a year. */
function timeOf(value: unknown): Date | undefined {
  const [shaped, day] =
    text(value)?.match(/^(\d{4}-\d\d-\d\d)T\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)$/) ?? [];
  return shaped && day && isDay(day) && isTime(shaped) ? new Date(shaped) : undefined;
}

/** Date takes the 30th of February for the 2nd of March. */
function isDay(day: string): boolean {
  return isTime(day) && new Date(day).toISOString().startsWith(day);
}

function isTime(time: string): boolean {
  return !Number.isNaN(Date.parse(time));
}

function floor(time: Date, unitMs: number): Date {
  return new Date(Math.floor(time.getTime() / unitMs) * unitMs);
}

type Fields = Readonly<Record<string, unknown>>;

function fieldsOf(value: unknown): Fields {
  return typeof value === 'object' && value !== null ? (value as Fields) : {};
}

function text(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined;
}
