import { instantOf } from '../calendar/instant.ts';
import type { Job, JobSchedule, Registry } from '../job.ts';
import { nextAfter, previousAtOrBefore } from '../calendar/occurrences.ts';
import { show } from '../options.ts';
import type { Json, TriggerKind } from '../run.ts';
import { captureValue } from '../capture.ts';

/**
 * This step's secret: which job and which slot an invocation is about.
 *
 * A slot is known by the time at which it was due and never by anything of the delivery: two targets or regions give
 * one occurrence two event ids, each attempt of EventBridge Scheduler has an execution id of its own, and each
 * invocation a request id of its own.
 *
 * An event is understood or refused, never guessed at: whoever sends something else meant something else by it, and a
 * job that runs on it runs at a time that nobody asked for.
 */
export interface Delivery {
  readonly job: Job;
  readonly slot: string;
  readonly scheduledFor: Date;
  /** The event named no time, so the slot is the clock's: to be guessed once for a request id. */
  readonly slotGuessed: boolean;
  /** A run by hand whose request named no time, so `scheduledFor` is the clock's: to be guessed once for its slot. */
  readonly scheduledForGuessed: boolean;
  /** The time is none of the job's schedules: to be skipped, unless its slot is known already. */
  readonly offSchedule: boolean;
  readonly trigger: TriggerKind;
  /** A person asked for it: it may run though paused or late, and repeat a slot that has failed for good. */
  readonly byHand: boolean;
  /** The request id by which Lambda knows the event; the first one's, where Lambda reports that it failed. */
  readonly deliveryId: string | null;
  readonly requestedBy: string | null;
  /** Why, in the words of whoever asked for it. */
  readonly requestReason?: string | null;
  readonly params: Json;
  /** How many invocations have started each other, up to this one; absent for one that none has. */
  readonly chain?: number;
}

/** What the HTTP entry, the sweep, and a run of a job that owes slots send to a job's function. */
export interface RunRequest {
  readonly cronce: {
    readonly job: string;
    readonly trigger: 'manual' | 'sweep';
    /** `manual:<key>`, or the time of an occurrence. */
    readonly slot: string;
    /**
     * ISO 8601; when a run by hand was asked for, the same on each delivery of it. Of an occurrence its time, to say that
     * no other is meant.
     */
    readonly scheduledFor?: string | null;
    readonly requestedBy?: string | null;
    /** Why; 1 to 500 characters. */
    readonly reason?: string | null;
    readonly params?: Json;
    /** How many invocations have started each other, this one included: see owed.ts. */
    readonly chain?: number;
  };
}

/** An event that is not understood, or not meant for this function. The message shows its keys, never its values. */
export class TriggerError extends Error {
  override readonly name = 'TriggerError';
  /** Whose event it was, where that is known: the refusal is then a failure on its record. */
  readonly job: Job | null;

  constructor(message: string, job: Job | null = null) {
    super(message);
    this.job = job;
  }
}

export interface Surroundings {
  readonly registry: Registry;
  /** The job that this function was deployed for; null for a function that serves them all. */
  readonly ownJob: string | null;
  readonly deliveryId: string | null;
  readonly now: Date;
}

/**
 * Understands rule events, `inputTransformer` shapes, EventBridge Scheduler payloads, run requests, Lambda's own record
 * of any of these that failed, and events with nothing in them but, maybe, params.
 * @throws {TriggerError} for anything else
 */
export function deliveryOf(event: unknown, around: Surroundings): Delivery {
  const own = around.ownJob === null ? null : (around.registry.get(around.ownJob) ?? null);
  const [inner, of] = ofFailureRecord(event, around);
  const fields = fieldsOf(inner);
  if (fields === undefined) throw notUnderstood(inner, own);
  if ('cronce' in fields) return requested(fields, of);
  if (!isTimed(fields) && !isBare(fields)) throw notUnderstood(inner, own);
  return timed(fields, of);
}

const understood =
  'an event of an EventBridge rule or of EventBridge Scheduler, {job, schedule, scheduledTime, eventId, params}, ' +
  'a run request {cronce: …}, Lambda’s record of one of these that failed, or nothing but params';

function notUnderstood(event: unknown, job: Job | null): TriggerError {
  return new TriggerError(`the event is not understood: ${seen(event)}; understood are ${understood}`, job);
}

/** The kind of an event and its keys: its values may be secrets. */
function seen(event: unknown): string {
  if (Array.isArray(event)) return 'a list';
  if (typeof event !== 'object' || event === null) return `a ${typeof event}`;
  const keys = Object.keys(event);
  const shown = keys.slice(0, 10).map((key) => show(key.slice(0, 40)));
  return `an object with ${[...shown, ...(keys.length > 10 ? [`${keys.length - 10} more`] : [])].join(', ')}`;
}

// --- shapes -------------------------------------------------------------------------------------

type Fields = Readonly<Record<string, unknown>>;

/**
 * An event's own members and no inherited ones, whatever they are called (`__proto__` may be one); none of null, which
 * is an event with nothing in it. Undefined for what has no members.
 */
function fieldsOf(event: unknown): Fields | undefined {
  if (event === null || event === undefined) return bare({});
  return typeof event === 'object' && !Array.isArray(event) ? bare(event) : undefined;
}

function bare(members: object): Fields {
  const entries = Object.entries(members).filter(([, value]) => value !== undefined);
  return Object.setPrototypeOf(Object.fromEntries(entries), null) as Fields;
}

function has(fields: Fields, allowed: readonly string[]): boolean {
  return Object.keys(fields).every((key) => allowed.includes(key));
}

const ofFailure = [
  'version',
  'timestamp',
  'requestContext',
  'requestPayload',
  'responseContext',
  'responsePayload',
];

/**
 * What Lambda sends to a function's `OnFailure` destination wraps the event that failed; once, since a record of a
 * record is no event of ours. Lambda kept one request id through its attempts, so a guess goes by that one.
 */
function ofFailureRecord(event: unknown, around: Surroundings): readonly [unknown, Surroundings] {
  const fields = fieldsOf(event);
  if (!fields || !('requestPayload' in fields) || !has(fields, ofFailure)) return [event, around];
  if (!('responsePayload' in fields) && !('requestContext' in fields)) return [event, around];
  const context = fieldsOf(fields['requestContext']);
  if (context?.['condition'] === 'Success') return [event, around];
  const requestId = context?.['requestId'];
  const deliveryId = isCleanText(requestId, 100) ? requestId : around.deliveryId;
  return [fields['requestPayload'], { ...around, deliveryId }];
}

/** EventBridge may add members; those of a transformer are ours, and a misspelt one is no event of ours. */
function isTimed(fields: Fields): boolean {
  if (fields['source'] === 'aws.events' || fields['source'] === 'aws.scheduler')
    return (fields['detail-type'] ?? scheduledEvent) === scheduledEvent;
  return ('job' in fields || 'scheduledTime' in fields) && has(fields, ofTransformer);
}

const scheduledEvent = 'Scheduled Event';
/** The last three as EventBridge Scheduler's keywords fill them in. */
const ofTransformer = [
  'job',
  'schedule',
  'scheduledTime',
  'eventId',
  'params',
  'attempt',
  'executionId',
  'scheduleArn',
];

function isBare(fields: Fields): boolean {
  return has(fields, ['params']);
}

// --- jobs ---------------------------------------------------------------------------------------

/** A function runs its own job and no other, whoever the event names: it has that job's time limit and rights. */
function jobOf(named: unknown, { registry, ownJob }: Surroundings): Job {
  const own = registry.get(ownJob ?? '') ?? null;
  const known = [...registry.keys()].join(', ');
  const name = named ?? ownJob;
  if (name === null) throw new TriggerError(`the event names no job; known: ${known}`);
  if (typeof name !== 'string') throw new TriggerError(`the event’s job is no text; known: ${known}`, own);
  const job = registry.get(name);
  if (!job) throw new TriggerError(`no job is named ${show(name)}; known: ${known}`, own);
  if (ownJob !== null && job.name !== ownJob)
    throw new TriggerError(
      `the event is for job ${job.name}, and this is the function of ${ownJob}; send it to its own`,
      own,
    );
  return job;
}

// --- events of a schedule -----------------------------------------------------------------------

function timed(fields: Fields, around: Surroundings): Delivery {
  const job = jobOf(fields['job'], around);
  const index = indexIn(fields, job);
  const due = timeIn(fields, 'scheduledTime', job) ?? timeIn(fields, 'time', job);
  const place = due ? placeOf(due, job, index) : unscheduled(around.now, false, null);
  return {
    job,
    scheduledFor: place.scheduledFor,
    slot: slotName(place.scheduledFor),
    slotGuessed: due === undefined,
    scheduledForGuessed: false,
    offSchedule: place.offSchedule,
    trigger: kindOf(fields, place.schedule ?? job.schedules[index ?? 0]),
    byHand: false,
    deliveryId: around.deliveryId,
    requestedBy: null,
    params: paramsIn(fields, job),
  };
}

/** Which of the job's schedules has fired, where the event says so. */
function indexIn(fields: Fields, job: Job): number | undefined {
  const index = fields['schedule'];
  if (index === undefined || (typeof index === 'number' && Number.isInteger(index) && index >= 0))
    return index;
  throw new TriggerError('schedule is no index of one of the job’s schedules; send 0 for the first', job);
}

/**
 * An emulator hands over Scheduler's keywords as literal text: what doesn't look like a time names none. What does, and
 * is none, is refused, like anything else that was meant and can't be read.
 */
function timeIn(fields: Fields, key: string, job: Job): Date | undefined {
  const given = fields[key] ?? undefined;
  const instant = instantOf(given);
  if (instant || given === undefined || (typeof given === 'string' && !/^\s*[-+]?\d/.test(given)))
    return instant;
  throw new TriggerError(
    `${key} is no time in ISO 8601 with its zone, such as 2026-11-29T12:00:00Z, in the years 1970 to 2199`,
    job,
  );
}

function kindOf(fields: Fields, schedule: JobSchedule | undefined): TriggerKind {
  if (fields['source'] === 'aws.events') return 'rule';
  if (fields['source'] === 'aws.scheduler') return 'scheduler';
  return (fields['scheduledTime'] === undefined ? undefined : schedule?.via) ?? 'unknown';
}

// --- run requests -------------------------------------------------------------------------------

const ofRequest = ['job', 'trigger', 'slot', 'scheduledFor', 'requestedBy', 'reason', 'params', 'chain'];
const longestSlot = 300;
const longest = { requestedBy: 200, reason: 500 } as const;

function requested(event: Fields, around: Surroundings): Delivery {
  const own = around.registry.get(around.ownJob ?? '') ?? null;
  const request = fieldsOf(event['cronce']);
  if (!request || !has(event, ['cronce'])) throw notUnderstood(event, own);
  if (!('job' in request)) throw new TriggerError('a run request names no job', own);
  const job = jobOf(request['job'], around);
  const stranger = Object.keys(request).find((key) => !ofRequest.includes(key));
  if (stranger !== undefined)
    throw new TriggerError(
      `a run request has no ${show(stranger.slice(0, 40))}; allowed: ${ofRequest.join(', ')}`,
      job,
    );
  const byHand = triggerIn(request, job) === 'manual';
  return {
    job,
    ...slotIn(request, job, around.now, byHand),
    slotGuessed: false,
    trigger: byHand ? 'manual' : 'sweep',
    byHand,
    deliveryId: around.deliveryId,
    requestedBy: textIn(request, 'requestedBy', job),
    requestReason: textIn(request, 'reason', job),
    params: paramsIn(request, job),
    chain: chainIn(request, job),
  };
}

function chainIn(request: Fields, job: Job): number {
  const chain = request['chain'] ?? 0;
  if (typeof chain === 'number' && Number.isInteger(chain) && chain >= 0) return chain;
  throw new TriggerError('the chain of a run request is no whole number from 0 on; leave it out', job);
}

function triggerIn(request: Fields, job: Job): 'manual' | 'sweep' {
  const { trigger } = request;
  if (trigger === 'manual' || trigger === 'sweep') return trigger;
  throw new TriggerError('the trigger of a run request is neither manual nor sweep', job);
}

function textIn(request: Fields, key: keyof typeof longest, job: Job): string | null {
  const given = request[key] ?? null;
  if (given === null || isCleanText(given, longest[key])) return given;
  throw new TriggerError(
    `${key} is no text of 1 to ${longest[key]} characters without control characters`,
    job,
  );
}

type SlotOf = Pick<Delivery, 'slot' | 'scheduledFor' | 'scheduledForGuessed' | 'offSchedule'>;

function slotIn(request: Fields, job: Job, now: Date, byHand: boolean): SlotOf {
  const slot = slotText(request, job);
  const asked = askedFor(request, job);
  if (/^manual:./.test(slot))
    return { slot, scheduledFor: asked ?? now, scheduledForGuessed: !asked, offSchedule: false };
  return scheduledSlotIn(slot, asked, job, byHand);
}

function slotText(request: Fields, job: Job): string {
  const slot = request['slot'] ?? undefined;
  if (slot === undefined)
    throw new TriggerError('a run request without a slot; give manual:<key> or a time', job);
  if (isCleanText(slot, longestSlot)) return slot;
  throw new TriggerError(
    `the slot is no text of 1 to ${longestSlot} characters without control characters`,
    job,
  );
}

function scheduledSlotIn(slot: string, asked: Date | undefined, job: Job, byHand: boolean): SlotOf {
  const due = instantOf(slot);
  if (!due) throw new TriggerError(`slot ${show(slot)} is neither manual:<key> nor a time`, job);
  if (asked && floor(asked, 1_000).getTime() !== floor(due, 1_000).getTime())
    throw new TriggerError('scheduledFor is another time than the slot’s; leave it out', job);
  // The sweep reckons slots by what it knows of a rate's phase, and of schedules that have changed since.
  const place = byHand ? placeOf(due, job) : null;
  // Said twice it is that very slot, which the HTTP entry has looked up, and not one that it may be near to.
  const scheduledFor = place && !asked ? place.scheduledFor : floor(due, 1_000);
  const offSchedule = place?.offSchedule ?? false;
  return { slot: slotName(scheduledFor), scheduledFor, scheduledForGuessed: false, offSchedule };
}

function askedFor(request: Fields, job: Job): Date | undefined {
  const given = request['scheduledFor'] ?? undefined;
  const asked = instantOf(given);
  if (asked || given === undefined) return asked;
  throw new TriggerError('scheduledFor is no time in ISO 8601 with its zone, in the years 1970 to 2199', job);
}

/** What can be stored and shown as it is. */
/** Why a run was asked for, in words that a line shows as they are. */
export function isReason(given: string): boolean {
  return isCleanText(given, longest.reason);
}

function isCleanText(given: unknown, most: number): given is string {
  return (
    typeof given === 'string' &&
    given.length > 0 &&
    given.length <= most &&
    given.isWellFormed() &&
    !/\p{Cc}/u.test(given)
  );
}

// --- params -------------------------------------------------------------------------------------

/** What is kept of params as it is; beyond it a job would be given others than were sent. */
const most = { bytes: 200_000, depth: 12, entries: 1_000, text: 64 * 1024 } as const;

function paramsIn(fields: Fields, job: Job): Json {
  const { params } = fields;
  const problem = tooMuchOf(params);
  if (problem === undefined) return captureValue(params);
  throw new TriggerError(`params have ${problem}; store more elsewhere and pass its name`, job);
}

function tooMuchOf(params: unknown): string | undefined {
  const shape = tooMuchIn(params);
  if (shape !== undefined || params === undefined) return shape;
  return Buffer.byteLength(JSON.stringify(params)) > most.bytes
    ? `more than ${most.bytes / 1_000} KB`
    : undefined;
}

/** Without recursion: of 30,000 lists in each other none can be stringified. */
function tooMuchIn(params: unknown): string | undefined {
  const open: (readonly [value: unknown, depth: number])[] = [[params, 0]];
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    const [value, depth] = next;
    if (typeof value === 'string' && value.length > most.text)
      return `a text of more than ${most.text / 1_024} KB`;
    if (typeof value !== 'object' || value === null) continue;
    if (depth >= most.depth) return `more than ${most.depth} levels`;
    const members = Object.values(value);
    if (members.length > most.entries) return `more than ${most.entries} entries in one level`;
    for (const member of members) open.push([member, depth + 1]);
  }
  return undefined;
}

// --- occurrences --------------------------------------------------------------------------------

/** Where a time stands among the occurrences of a job's schedules. */
export interface SlotPlace {
  readonly scheduledFor: Date;
  /** The schedule whose occurrence it is. */
  readonly schedule: JobSchedule | null;
  readonly offSchedule: boolean;
}

/** A rule fires within its minute. */
const jitterMs = 60_000;
/** And, now and then, a little early: the clocks of many machines are not one. */
const earlyMs = 5_000;

/**
 * The occurrence that an event of some time is about: the one at that time or up to a minute before, or within 5 s
 * after it. The phase of a `rate()` is set to the second when its rule is made, and isn't known here: a time within its
 * start and end is its own, to the second, unless a cron of the same job has an occurrence there.
 * @param index of the schedule that fired, where that is known; one that the job no longer has counts for nothing
 */
export function placeOf(time: Date, job: Job, index?: number): SlotPlace {
  const fired = index === undefined ? undefined : job.schedules[index];
  const candidates = fired ? [fired] : job.schedules;
  const ofCron = candidates
    .flatMap((schedule) => {
      const at = schedule.schedule.kind === 'cron' ? nearest(time, schedule) : undefined;
      return at ? [{ scheduledFor: at, schedule, offSchedule: false }] : [];
    })
    .sort((one, other) => distance(one.scheduledFor, time) - distance(other.scheduledFor, time));
  if (ofCron[0]) return ofCron[0];
  const ofRate = candidates.find((schedule) => schedule.schedule.kind === 'rate' && isWithin(time, schedule));
  if (ofRate) return { scheduledFor: floor(time, 1_000), schedule: ofRate, offSchedule: false };
  return unscheduled(time, true, candidates[0] ?? null);
}

function unscheduled(time: Date, offSchedule: boolean, nearby: JobSchedule | null): SlotPlace {
  const unitMs = nearby?.schedule.kind === 'rate' ? 1_000 : 60_000;
  return { scheduledFor: floor(time, unitMs), schedule: null, offSchedule };
}

function nearest(time: Date, given: JobSchedule): Date | undefined {
  const { schedule, timeZone } = given;
  const before = previousAtOrBefore(schedule, time, timeZone);
  if (before && time.getTime() - before.getTime() < lateMs(given) && isBetween(before, given)) return before;
  const after = nextAfter(schedule, time, timeZone);
  return after && after.getTime() - time.getTime() <= earlyMs && isBetween(after, given) ? after : undefined;
}

function isBetween(at: Date, { start, end }: JobSchedule): boolean {
  return (start === null || at >= start) && (end === null || at <= end);
}

/** As {@link isBetween}, for the event of an occurrence that isn't known. */
function isWithin(time: Date, given: JobSchedule): boolean {
  const { start, end } = given;
  const isBegun = start === null || time.getTime() >= start.getTime() - earlyMs;
  return isBegun && (end === null || time.getTime() < end.getTime() + lateMs(given));
}

/** How long after its occurrence an event may say that it comes, ms: Scheduler spreads them over its window. */
function lateMs({ flexibleMinutes }: JobSchedule): number {
  return (flexibleMinutes ?? 0) * 60_000 + jitterMs;
}

function distance(one: Date, other: Date): number {
  return Math.abs(one.getTime() - other.getTime());
}

/** `2026-11-29T12:00:00Z`. */
export function slotName(scheduledFor: Date): string {
  return scheduledFor.toISOString().replace(/\.\d+Z$/, 'Z');
}

function floor(time: Date, unitMs: number): Date {
  return new Date(Math.floor(time.getTime() / unitMs) * unitMs);
}
