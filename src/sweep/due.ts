import type { Job, JobSchedule } from '../job.ts';
import { earlierOf, laterOf } from '../calendar/instant.ts';
import { matches, nextAfter, previousAtOrBefore } from '../calendar/occurrences.ts';
import { ask, jsonText } from '../postgres/call.ts';
import type { Session } from '../postgres/session.ts';
import { unnamedDeployment } from '../run.ts';

/**
 * Which slots of a job were ever due, by what its code says and what is on record: a slot that was none must not be run
 * as one. The phase of a `rate()`, and since when a schedule is known, only the record has.
 */
export interface DueRecord {
  /** Something came of this very slot once: schedules change, and old slots stay what they were. */
  readonly isKnown: boolean;
  readonly firstSeenAt: string | null;
  readonly schedules: readonly (KnownSchedule & { readonly knownSince: string })[];
  /** The first slot on record, whatever came of it. */
  readonly firstSlotAt: string | null;
  /** The times of the last deliveries of rules and schedules, newest first; no guesses. */
  readonly delivered: readonly string[];
}

/** As a schedule is on record; two windows of one expression are two. Null is no bound. */
export interface KnownSchedule {
  readonly expression: string;
  readonly timeZone: string;
  readonly start: string | null;
  readonly end: string | null;
}

/** Whether that record is of this schedule. */
export function isOf(known: KnownSchedule, { schedule, timeZone, start, end }: JobSchedule): boolean {
  return (
    schedule.expression === known.expression &&
    timeZone === known.timeZone &&
    isAt(start, known.start) &&
    isAt(end, known.end)
  );
}

function isAt(bound: Date | null, stored: string | null): boolean {
  return (bound?.getTime() ?? null) === (stored === null ? null : Date.parse(stored));
}

/** Of such a time nothing is learnt of a rate's phase: its delivery was a cron's of the same job. */
export function isOfCron(job: Job | undefined, at: Date): boolean {
  return (job?.schedules ?? []).some(
    ({ schedule, timeZone }) => schedule.kind === 'cron' && matches(schedule, at, timeZone),
  );
}

/** As many as the sweep looks at to find a phase. */
const deliveriesSeen = 100;

export async function dueRecord(
  session: Session,
  job: string,
  slot: string,
  deployment: string = unnamedDeployment,
): Promise<DueRecord> {
  const text = (value: string) => jsonText(session, value);
  const own = `deployment = ${text(deployment)} AND job = ${text(job)}`;
  const ofSchedule = `${own} AND skip_reason IS DISTINCT FROM 'off_schedule' AND slot NOT LIKE 'manual:%'`;
  return ask<DueRecord>(
    session,
    `jsonb_build_object(
      'isKnown', EXISTS (SELECT FROM cronce.run WHERE ${ofSchedule} AND slot = ${text(slot)}),
      'firstSeenAt', (SELECT first_seen_at FROM cronce.job WHERE deployment = ${text(deployment)} AND name = ${text(job)}),
      'firstSlotAt', (SELECT min(scheduled_for) FROM cronce.run WHERE ${ofSchedule} AND slot NOT LIKE 'refused:%'),
      'schedules', (SELECT coalesce(jsonb_agg(jsonb_build_object('expression', expression, 'timeZone', time_zone,
          'start', nullif(starts_at, '-infinity'), 'end', nullif(ends_at, 'infinity'), 'knownSince', known_since)), '[]') FROM cronce.schedule WHERE ${own}),
      'delivered', (SELECT coalesce(jsonb_agg(d.at ORDER BY d.at DESC), '[]') FROM (
          SELECT DISTINCT scheduled_for AS at FROM cronce.run
          WHERE ${ofSchedule} AND trigger IN ('rule', 'scheduler') AND NOT slot_guessed
          ORDER BY 1 DESC LIMIT ${deliveriesSeen}) d))`,
  );
}

/** A schedule as far as its slots can be told: from when to when, and in which phase. */
interface Span {
  readonly schedule: JobSchedule;
  readonly anchor: Date;
  readonly from: Date;
  readonly until: Date;
}

export interface Due {
  readonly isDue: boolean;
  /** Of each schedule the last slot before that time and the first one after it, as far as there are any; in order. */
  readonly nearest: readonly Date[];
  /** A rate of this job was never delivered, so nobody knows its phase. */
  readonly lacksPhase: boolean;
}

/** Whether an occurrence of one of the job's schedules fell due at `at`, and which did near it. */
export function dueAt(at: Date, job: Job, record: DueRecord, now: Date): Due {
  const enabled = job.enabled ? job.schedules.filter((schedule) => schedule.enabled) : [];
  const anchors = anchorsOf(job, record);
  const spans = enabled.flatMap((schedule) => spanOf(schedule, anchors.get(schedule), record, now) ?? []);
  const nearest = spans.flatMap((span) => nearestIn(span, at)).map((time) => time.getTime());
  return {
    isDue: spans.some((span) => isIn(span, at) && falls(span, at)),
    nearest: [...new Set(nearest)].sort((one, other) => one - other).map((time) => new Date(time)),
    lacksPhase: enabled.some((schedule) => isRate(schedule) && !anchors.has(schedule)),
  };
}

function spanOf(
  schedule: JobSchedule,
  anchor: Date | undefined,
  record: DueRecord,
  now: Date,
): Span | undefined {
  if (isRate(schedule) && !anchor) return undefined;
  const known = { schedule, anchor: anchor ?? now };
  const since = knownSince(known, record);
  if (since === undefined) return undefined;
  const from = laterOf(since, schedule.start);
  const until = earlierOf(now, schedule.end);
  return from <= until ? { ...known, from, until } : undefined;
}

/** The sweep may have met it later than its first delivery came. */
function knownSince(span: Pick<Span, 'schedule' | 'anchor'>, record: DueRecord): Date | undefined {
  const { firstSeenAt, firstSlotAt, delivered } = record;
  const noted = rowOf(span.schedule, record)?.knownSince ?? firstSeenAt;
  const times = [firstSlotAt, ...delivered].flatMap((time) => (time === null ? [] : [new Date(time)]));
  const shown = times.filter((time) => falls(span, time));
  const all = [...(noted === null ? [] : [new Date(noted)]), ...shown].map((time) => time.getTime());
  return all.length === 0 ? undefined : new Date(Math.min(...all));
}

function rowOf(schedule: JobSchedule, record: DueRecord) {
  return record.schedules.find((known) => isOf(known, schedule));
}

/**
 * A delivery shows a rate's phase, but not whose it was. It is no cron's of this job; and of several rates the shortest
 * delivers most, so what is most often in one phase is its own, and the rest is left to the others.
 */
function anchorsOf(job: Job, record: DueRecord): Map<JobSchedule, Date> {
  let left = record.delivered.map((time) => new Date(time)).filter((at) => !isOfCron(job, at));
  const rates = job.schedules.filter(isRate).sort((one, other) => everyMs(one) - everyMs(other));
  const anchors = new Map<JobSchedule, Date>();
  for (const rate of rates) {
    const known = rowOf(rate, record)?.knownSince;
    const since = known === undefined ? left : left.filter((at) => at >= new Date(known));
    const own = rates.length === 1 ? since.slice(0, 1) : largestPhase(since, everyMs(rate));
    if (own[0]) anchors.set(rate, own[0]);
    left = left.filter((at) => !own.includes(at));
  }
  return anchors;
}

/** Newest first, as they come. */
function largestPhase(times: readonly Date[], every: number): Date[] {
  const phases = new Map<number, Date[]>();
  for (const at of times) {
    const phase = at.getTime() % every;
    phases.set(phase, [...(phases.get(phase) ?? []), at]);
  }
  return [...phases.values()].sort((one, other) => other.length - one.length)[0] ?? [];
}

/** Outside of the span, of its ends the one that is near. */
function nearestIn(span: Span, at: Date): Date[] {
  const { schedule, anchor, from, until } = span;
  const [first, last] = [new Date(Math.max(at.getTime(), from.getTime() - 1)), at > until ? until : at];
  const before = previousAtOrBefore(schedule.schedule, last, schedule.timeZone, anchor);
  const after = nextAfter(schedule.schedule, first, schedule.timeZone, anchor);
  return [before, after].flatMap((time) => (time && isIn(span, time) ? [time] : []));
}

function falls({ schedule, anchor }: Pick<Span, 'schedule' | 'anchor'>, at: Date): boolean {
  return matches(schedule.schedule, at, schedule.timeZone, anchor);
}

function isIn({ from, until }: Span, at: Date): boolean {
  return at >= from && at <= until;
}

function isRate({ schedule }: JobSchedule): boolean {
  return schedule.kind === 'rate';
}

function everyMs({ schedule }: JobSchedule): number {
  return schedule.kind === 'rate' ? schedule.everyMs : 0;
}
