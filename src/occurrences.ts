/**
 * When a schedule falls due. croner searches the calendar; this module owns the clocks on the wall.
 *
 * croner is given the *parsed* schedule, printed as plain lists, and the wall clock as if it were UTC.
 * So its own reading of the grammar (it takes expressions that AWS refuses, knows no bare `L` in
 * day-of-week and no ranges that wrap around) and its own treatment of clock changes (a time in the
 * spring gap runs once the clock has jumped, a repeated time runs twice where any field has several
 * values) never come into play. It also searches ten times faster that way than with a zone. The search
 * itself, forward and back, has agreed with brute force in every test; one that finds nothing before the
 * end of 2199, such as 31 February, takes some milliseconds.
 *
 * EventBridge Scheduler's rules for zones, applied here: a local time that the clocks skip does not
 * fall due that day; one that they repeat falls due once, the first time round. Rules know UTC only.
 */
import { Cron } from 'croner';

import { checkTimeZone } from './schedule.ts';
import type { CronSchedule, Days, RateSchedule, Schedule } from './schedule.ts';

const dayMs = 86_400_000;

/**
 * The first occurrence strictly after an instant.
 *
 * @param timeZone IANA name; a rate is elapsed time and takes no notice of it.
 * @param anchor an occurrence of a rate, earlier or later, which fixes its phase: AWS sets that when it
 *   creates the rule, so it can't be known from the expression. Without one, `after` is the anchor.
 * @returns undefined when there is none, before the end of 2199 for a cron.
 * @throws ScheduleError for an unknown zone.
 */
export function nextAfter(
  schedule: Schedule,
  after: Date,
  timeZone = 'UTC',
  anchor = after,
): Date | undefined {
  if (schedule.kind === 'rate') return new Date(lastOfRate(schedule, after, anchor) + schedule.everyMs);
  const calendar = calendarOf(schedule);
  const clock = clockOf(timeZone);
  const start = new Date(clock.wallAt(after.getTime()));
  for (let wall = calendar.nextRun(start); wall !== null; wall = calendar.nextRun(wall)) {
    const instant = clock.firstAt(wall.getTime());
    // While the clocks repeat an hour, its minutes lie ahead on the wall but have had their turn.
    if (instant !== undefined && instant > after.getTime()) return new Date(instant);
  }
  return undefined;
}

/**
 * The last occurrence at or before an instant: the slot that should by now have been delivered. The
 * parameters and errors are those of {@link nextAfter}; without an anchor a rate's answer is `before`.
 */
export function previousAtOrBefore(
  schedule: Schedule,
  before: Date,
  timeZone = 'UTC',
  anchor = before,
): Date | undefined {
  if (schedule.kind === 'rate') return new Date(lastOfRate(schedule, before, anchor));
  const calendar = calendarOf(schedule);
  const clock = clockOf(timeZone);
  const previous = (wallMs: number) => calendar.previousRuns(1, new Date(wallMs))[0];
  // croner looks strictly before its reference, in whole seconds; a millisecond more includes it.
  let wall = previous(clock.latestWallBy(before.getTime()) + 1);
  for (; wall !== undefined; wall = previous(wall.getTime())) {
    const instant = clock.firstAt(wall.getTime());
    if (instant !== undefined && instant <= before.getTime()) return new Date(instant);
  }
  return undefined;
}

/**
 * Whether an instant is an occurrence, to the millisecond: 12:00:01 is none of `cron(0 12 * * ? *)`.
 * Without an anchor any instant may be one of a rate. Parameters and errors as for {@link nextAfter}.
 */
export function matches(schedule: Schedule, at: Date, timeZone = 'UTC', anchor = at): boolean {
  if (schedule.kind === 'rate') return lastOfRate(schedule, at, anchor) === at.getTime();
  if (at.getTime() % 1000 !== 0) return false;
  const clock = clockOf(timeZone);
  const wallMs = clock.wallAt(at.getTime());
  return calendarOf(schedule).match(new Date(wallMs)) && clock.firstAt(wallMs) === at.getTime();
}

/**
 * The occurrences in (`after`, `until`], in order, found one by one as they are asked for: the reader
 * of a long span sets the limit. Parameters and errors as for {@link nextAfter}.
 */
export function* occurrencesBetween(
  schedule: Schedule,
  after: Date,
  until: Date,
  timeZone = 'UTC',
  anchor = after,
): Generator<Date, void, undefined> {
  const next = (from: Date) => nextAfter(schedule, from, timeZone, anchor);
  for (let at = next(after); at !== undefined && at <= until; at = next(at)) yield at;
}

/** The last point of the rate's grid at or before an instant, in epoch milliseconds. */
function lastOfRate({ everyMs }: RateSchedule, at: Date, anchor: Date): number {
  return anchor.getTime() + Math.floor((at.getTime() - anchor.getTime()) / everyMs) * everyMs;
}

// --- calendar -----------------------------------------------------------------------------------

/** A search, built once for each schedule: building costs as much as several answers. */
const calendars = new WeakMap<CronSchedule, Cron>();

function calendarOf(schedule: CronSchedule): Cron {
  const known = calendars.get(schedule);
  if (known !== undefined) return known;
  const calendar = new Cron(patternOf(schedule), {
    mode: '7-part',
    alternativeWeekdays: true,
    utcOffset: 0,
  });
  calendars.set(schedule, calendar);
  return calendar;
}

function patternOf({ minutes, hours, days, months, years }: CronSchedule): string {
  const [dayOfMonth, dayOfWeek] = dayFieldsOf(days);
  return ['0', minutes, hours, dayOfMonth, months, dayOfWeek, years].join(' ');
}

function dayFieldsOf(days: Days): readonly [dayOfMonth: string, dayOfWeek: string] {
  switch (days.kind) {
    case 'dates':
      return [days.dates.join(), '?'];
    case 'last-date':
      return ['L', '?'];
    case 'last-working-day':
      return ['LW', '?'];
    case 'working-day-nearest':
      return [`${days.date}W`, '?'];
    case 'weekdays':
      return ['?', days.weekdays.join()];
    case 'nth-weekday':
      return ['?', `${days.weekday}#${days.nth}`];
    case 'last-weekday':
      return ['?', `${days.weekday}L`];
  }
}

// --- clock --------------------------------------------------------------------------------------

/**
 * The clock on the wall of a zone. A wall time is written as the epoch milliseconds at which a clock
 * on UTC shows the same; an instant is epoch milliseconds proper.
 */
interface WallClock {
  wallAt(instant: number): number;
  /** When the wall first shows a time; undefined if the clocks skip it. */
  firstAt(wall: number): number | undefined;
  /** The latest time that the wall has shown up to an instant: ahead of it while an hour is repeated. */
  latestWallBy(instant: number): number;
}

const clocks = new Map<string, WallClock>();

function clockOf(timeZone: string): WallClock {
  const known = clocks.get(timeZone);
  if (known !== undefined) return known;
  checkTimeZone(timeZone);
  const clock = timeZone === 'UTC' ? utcClock : zonedClock(timeZone);
  clocks.set(timeZone, clock);
  return clock;
}

const utcClock: WallClock = {
  wallAt: (instant) => instant,
  firstAt: (wall) => wall,
  latestWallBy: (instant) => instant,
};

function zonedClock(timeZone: string): WallClock {
  const offsetAt = offsetReader(timeZone);
  const wallAt = (instant: number) => instant + offsetAt(instant);
  const firstAt = (wall: number) => {
    // Offsets are less than a day, so these two lie on either side of any change near the wall time.
    const offsets = [offsetAt(wall - dayMs), offsetAt(wall + dayMs)];
    const instants = offsets.map((offset) => wall - offset).filter((instant) => wallAt(instant) === wall);
    return instants.length === 0 ? undefined : Math.min(...instants);
  };
  const latestWallBy = (instant: number) => {
    const wall = wallAt(instant);
    return wall + (instant - (firstAt(wall) ?? instant));
  };
  return { wallAt, firstAt, latestWallBy };
}

function offsetReader(timeZone: string): (instant: number) => number {
  const format = new Intl.DateTimeFormat('en-US', { timeZone, timeZoneName: 'longOffset' });
  return (instant) => {
    const [, sign, hours = '0', minutes = '0', seconds = '0'] =
      /GMT(?:([+-])(\d\d):(\d\d)(?::(\d\d))?)?$/.exec(format.format(instant)) ?? [];
    const ms = ((Number(hours) * 60 + Number(minutes)) * 60 + Number(seconds)) * 1000;
    return sign === '-' ? -ms : ms;
  };
}
