/**
 * When a schedule falls due: the days that it names, and the clocks on the wall.
 *
 * No library: a search over the parsed lists is short, and every function carries it, to check its schedules and its
 * events. It agrees with a brute-force reading in every test; one that finds nothing before the end of 2199, such as 31
 * February, takes some milliseconds.
 *
 * EventBridge Scheduler's rules for zones, applied here: a local time that the clocks skip does not
 * fall due that day; one that they repeat falls due once, the first time round. Rules know UTC only.
 */
import { checkTimeZone } from './expression.ts';
import type { CronSchedule, Days, RateSchedule, Schedule } from './expression.ts';

const minuteMs = 60_000;
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
  const clock = clockOf(timeZone);
  for (const wall of wallsFrom(schedule, clock.wallAt(after.getTime()))) {
    const instant = clock.firstAt(wall);
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
  const clock = clockOf(timeZone);
  for (const wall of wallsBackFrom(schedule, clock.latestWallBy(before.getTime()))) {
    const instant = clock.firstAt(wall);
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
  const clock = clockOf(timeZone);
  const wall = clock.wallAt(at.getTime());
  const [named] = wallsFrom(schedule, wall, wall);
  return named === wall && clock.firstAt(wall) === at.getTime();
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

/**
 * Whether anything falls due after an instant, until another or for ever. Most schedules answer without a clock of their
 * zone, which takes long to make: every function asks this of its jobs when it is loaded. Errors as for {@link nextAfter}.
 */
export function fallsDue(schedule: CronSchedule, after: Date, until: Date | null, timeZone: string): boolean {
  if (isDueInAnyZone(schedule, after, until)) return true;
  const next = nextAfter(schedule, after, timeZone);
  return next !== undefined && (until === null || next <= until);
}

/**
 * Two days of its own within a month, as clocks skip one day at most (Samoa, 2011) and never went forward twice in a month;
 * both are two days away from the ends, farther than any clock is off UTC.
 */
function isDueInAnyZone(schedule: CronSchedule, after: Date, until: Date | null): boolean {
  const last = until === null ? Infinity : until.getTime() - 2 * dayMs;
  const days = daysNamed(schedule, startOfDay(after.getTime()) + 2 * dayMs, last);
  const [one, other] = [days.next().value, days.next().value];
  return one !== undefined && other !== undefined && other <= last && other - one <= 31 * dayMs;
}

/** The last point of the rate's grid at or before an instant, in epoch milliseconds. */
function lastOfRate({ everyMs }: RateSchedule, at: Date, anchor: Date): number {
  return anchor.getTime() + Math.floor((at.getTime() - anchor.getTime()) / everyMs) * everyMs;
}

// --- calendar -----------------------------------------------------------------------------------

/** The wall times that a schedule names, from one on, in order. Written as in {@link WallClock}. */
function* wallsFrom(
  schedule: CronSchedule,
  from: number,
  until = Infinity,
): Generator<number, void, undefined> {
  for (const midnight of daysNamed(schedule, startOfDay(from), until))
    for (const wall of timesOf(schedule, midnight)) if (wall >= from && wall <= until) yield wall;
}

/** The same, backwards, from one on. */
function* wallsBackFrom(schedule: CronSchedule, from: number): Generator<number, void, undefined> {
  for (const midnight of daysNamedBack(schedule, from))
    for (const wall of timesOf(schedule, midnight).reverse()) if (wall <= from) yield wall;
}

function* daysNamed(schedule: CronSchedule, from: number, until: number): Generator<number, void, undefined> {
  const { years, months } = schedule;
  const first = new Date(from).getUTCFullYear();
  for (const year of years.filter((one) => one >= first))
    for (const month of months) {
      if (Date.UTC(year, month - 1) > until) return;
      if (Date.UTC(year, month) > from) yield* midnights(schedule, year, month).filter((one) => one >= from);
    }
}

function* daysNamedBack(schedule: CronSchedule, until: number): Generator<number, void, undefined> {
  const last = new Date(until).getUTCFullYear();
  for (const year of schedule.years.filter((one) => one <= last).reverse())
    for (const month of schedule.months.toReversed())
      if (Date.UTC(year, month - 1) <= until)
        yield* midnights(schedule, year, month)
          .filter((one) => one <= until)
          .reverse();
}

function startOfDay(wall: number): number {
  return Math.floor(wall / dayMs) * dayMs;
}

function timesOf({ hours, minutes }: CronSchedule, midnight: number): number[] {
  return hours.flatMap((hour) => minutes.map((minute) => midnight + (hour * 60 + minute) * minuteMs));
}

function midnights({ days }: CronSchedule, year: number, month: number): number[] {
  const length = new Date(Date.UTC(year, month, 0)).getUTCDate();
  // AWS's weekdays: 1 is Sunday, and 7 is Saturday.
  const weekdayOf = (date: number) => new Date(Date.UTC(year, month - 1, date)).getUTCDay() + 1;
  return datesOf(days, length, weekdayOf).map((date) => Date.UTC(year, month - 1, date));
}

/** The dates that a rule names in a month, in order. */
function datesOf(days: Days, length: number, weekdayOf: (date: number) => number): readonly number[] {
  const all = Array.from({ length }, (_, i) => i + 1);
  switch (days.kind) {
    case 'dates':
      return days.dates.filter((date) => date <= length);
    case 'last-date':
      return [length];
    case 'last-working-day':
      return [nearestWorkingDay(length, length, weekdayOf)];
    case 'working-day-nearest':
      return days.date <= length ? [nearestWorkingDay(days.date, length, weekdayOf)] : [];
    case 'weekdays':
      return all.filter((date) => days.weekdays.includes(weekdayOf(date)));
    case 'nth-weekday':
      return all.filter((date) => weekdayOf(date) === days.weekday).slice(days.nth - 1, days.nth);
    case 'last-weekday':
      return all.filter((date) => weekdayOf(date) === days.weekday).slice(-1);
  }
}

/** On a Saturday the Friday, on a Sunday the Monday; at an end of the month the other way, to stay within it. */
function nearestWorkingDay(date: number, length: number, weekdayOf: (date: number) => number): number {
  const weekday = weekdayOf(date);
  if (weekday === 7) return date === 1 ? date + 2 : date - 1;
  if (weekday === 1) return date === length ? date - 2 : date + 1;
  return date;
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
