/**
 * AWS's schedule expressions: what is written, what it means, and what AWS refuses. No clock, no
 * time zone arithmetic and no library, so that a handler which only checks its schedule carries
 * nothing else; when a schedule falls due is the matter of occurrences.ts.
 *
 * Sources: EventBridge User Guide, "Setting a schedule pattern"
 * (https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-scheduled-rule-pattern.html), and
 * EventBridge Scheduler User Guide, "Schedule types"
 * (https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html). Where they are silent
 * AWS follows Quartz (case of names, `LW`, `6L`, ranges that wrap around, the bound on steps), and so
 * does this. What AWS leaves undefined is refused rather than guessed: a step in day-of-week, `L` or
 * `W` in a list, an offset such as `L-3`.
 */
import { linkedZones } from './zones.ts';

/** The part of a schedule that an error is about. */
export type ScheduleField =
  FieldName | 'expression' | 'day-of-month and day-of-week' | 'rate value' | 'rate unit' | 'time zone';

type FieldName = 'minutes' | 'hours' | 'day-of-month' | 'month' | 'day-of-week' | 'year';

/** A schedule that AWS would refuse. The message is one line and ends with the cure. */
export class ScheduleError extends Error {
  override readonly name = 'ScheduleError';
  /** The whole expression, or the name of the zone, as it was given. */
  readonly expression: string;
  readonly field: ScheduleField;
  /** The part that is wrong, as it was given but for the case of its letters. */
  readonly given: string;
  /** What to write instead. */
  readonly cure: string;

  constructor(expression: string, field: ScheduleField, given: string, cure: string) {
    const place = given === expression ? '' : ` in ${quote(expression)}`;
    super(`Invalid ${field} ${quote(given)}${place}: ${cure}`);
    this.expression = expression;
    this.field = field;
    this.given = given;
    this.cure = cure;
  }
}

/** One line whatever was given, and not much longer than a schedule can be. */
function quote(text: string): string {
  return JSON.stringify(text.length > 120 ? `${text.slice(0, 119)}…` : text);
}

/**
 * Which days a cron expression names. Weekdays are AWS's: 1 is Sunday, 7 is Saturday. A rule that a
 * month can't satisfy (the 31st in April, a fifth Friday, `31W` in June) leaves that month out.
 */
export type Days =
  | { readonly kind: 'dates'; readonly dates: readonly number[] }
  | { readonly kind: 'last-date' }
  | { readonly kind: 'last-working-day' }
  /** Monday to Friday nearest to the date, within its month: `1W` on a Saturday is Monday the 3rd. */
  | { readonly kind: 'working-day-nearest'; readonly date: number }
  | { readonly kind: 'weekdays'; readonly weekdays: readonly number[] }
  | { readonly kind: 'nth-weekday'; readonly weekday: number; readonly nth: number }
  | { readonly kind: 'last-weekday'; readonly weekday: number };

/** `cron(...)`: wall-clock minutes. The lists are ascending, without repeats, and never empty. */
export interface CronSchedule {
  readonly kind: 'cron';
  /** The text for AWS: upper case, single spaces, in `cron(...)`. */
  readonly expression: string;
  readonly minutes: readonly number[];
  readonly hours: readonly number[];
  readonly days: Days;
  /** 1 is January. */
  readonly months: readonly number[];
  readonly years: readonly number[];
}

/** `rate(...)`: elapsed time, whatever the clocks on the wall do. */
export interface RateSchedule {
  readonly kind: 'rate';
  /** The text for AWS. */
  readonly expression: string;
  readonly everyMs: number;
}

export type Schedule = CronSchedule | RateSchedule;

/**
 * Reads `cron(minutes hours day-of-month month day-of-week year)` or `rate(n unit)`. Names may be in
 * any case, spaces of any number. An expression that can be written but never falls due, such as 31
 * February or a year gone by, is a schedule like any other, as on AWS.
 *
 * @throws ScheduleError for whatever AWS refuses, and for `at(...)`: a job recurs.
 */
export function parseSchedule(expression: string): Schedule {
  const given = expression.trim();
  const [, form, body = ''] = /^(cron|rate|at)\((.*)\)$/s.exec(given) ?? [];
  switch (form) {
    case 'cron':
      return parseCron(given, body);
    case 'rate':
      return parseRate(given, body);
    case 'at':
      throw new ScheduleError(given, 'expression', given, onceInstead(body));
    default:
      throw new ScheduleError(given, 'expression', given, wrapInstead(given));
  }
}

/**
 * @throws ScheduleError unless the zone is an IANA name known here, in its own spelling. EventBridge
 *   Scheduler takes no offsets such as `+01:00`, and whether it would overlook the case it doesn't say.
 */
export function checkTimeZone(zone: string): void {
  if (isZone(zone)) return;
  const meant = knownZones().find((known) => known.toLowerCase() === zone.toLowerCase());
  const cure =
    meant === undefined
      ? 'use an IANA name such as UTC, Europe/Berlin or America/New_York'
      : `write ${meant}`;
  throw new ScheduleError(zone, 'time zone', zone, cure);
}

/**
 * By its name alone: making a clock for it would load the engine's calendars, 25 ms and 8 MB, into each function that
 * has such a job. Every Node from 20.19 on has a clock for all these names.
 */
function isZone(zone: string): boolean {
  return linkedZones.includes(zone) || Intl.supportedValuesOf('timeZone').includes(zone);
}

function knownZones(): readonly string[] {
  return [...Intl.supportedValuesOf('timeZone'), ...linkedZones];
}

// --- cron ---------------------------------------------------------------------------------------

interface Field {
  readonly name: FieldName;
  readonly least: number;
  readonly most: number;
  /** Names of the values from `least` on. */
  readonly names: readonly string[];
  /** What a single value may be, for messages. */
  readonly allowed: string;
}

const monthNames = ['JAN', 'FEB', 'MAR', 'APR', 'MAY', 'JUN', 'JUL', 'AUG', 'SEP', 'OCT', 'NOV', 'DEC'];
const weekdayNames = ['SUN', 'MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT'];

const minutesField: Field = { name: 'minutes', least: 0, most: 59, names: [], allowed: '0-59' };
const hoursField: Field = { name: 'hours', least: 0, most: 23, names: [], allowed: '0-23' };
const dateField: Field = { name: 'day-of-month', least: 1, most: 31, names: [], allowed: '1-31' };
const monthField: Field = {
  name: 'month',
  least: 1,
  most: 12,
  names: monthNames,
  allowed: '1-12 or JAN-DEC',
};
const weekdayField: Field = {
  name: 'day-of-week',
  least: 1,
  most: 7,
  names: weekdayNames,
  allowed: '1-7 or SUN-SAT, where 1 is SUN and 7 is SAT',
};
const yearField: Field = { name: 'year', least: 1970, most: 2199, names: [], allowed: '1970-2199' };

type SixFields = readonly [string, string, string, string, string, string];

/** Makes the error about one field of one expression. */
type Refuse = (given: string, cure: string) => ScheduleError;

function parseCron(expression: string, body: string): CronSchedule {
  const fields = splitFields(body);
  const refuseIn =
    (field: ScheduleField): Refuse =>
    (given, cure) =>
      new ScheduleError(expression, field, given, cure);
  if (!isSixFields(fields)) throw refuseIn('expression')(expression, countCure(fields));
  const values = (field: Field, text: string) => parseValues(field, text, refuseIn(field.name));

  const [minutes, hours, , month, , year] = fields;
  if (year === '?') throw refuseIn('year')(year, quartzCure(fields));
  return {
    kind: 'cron',
    expression: `cron(${fields.join(' ')})`,
    minutes: values(minutesField, minutes),
    hours: values(hoursField, hours),
    months: values(monthField, month),
    years: values(yearField, year),
    days: parseDays(fields, refuseIn),
  };
}

function splitFields(body: string): readonly string[] {
  return body.trim().toUpperCase().split(/\s+/);
}

function isSixFields(fields: readonly string[]): fields is SixFields {
  return fields.length === 6;
}

/** `*`, `a`, `a-b`, and `/step` after each of them, in a list. */
function parseValues(field: Field, text: string, refuse: Refuse): readonly number[] {
  const values = text.split(',').flatMap((item) => parseItem(field, item, text, refuse));
  return [...new Set(values)].sort((a, b) => a - b);
}

function parseItem(field: Field, item: string, text: string, refuse: Refuse): readonly number[] {
  const parts = /^(?:\*|(\w+)(?:-(\w+))?)(?:\/(\w+))?$/.exec(item);
  if (parts === null) throw refuse(item === '' ? text : item, shapeCure(field, item));
  const [, from, to, step] = parts;

  const first = from === undefined ? field.least : parseValue(field, from, refuse);
  const openEnd = from === undefined || step !== undefined;
  const last = to === undefined ? (openEnd ? field.most : first) : parseValue(field, to, refuse);
  if (last < first && field === yearField) throw refuse(item, 'write the earlier year first');
  const values = stride(field, first, last, parseStep(field, step, refuse));
  if (step !== undefined && field === weekdayField) throw refuse(item, weekdayStepCure(values));
  return values;
}

function parseValue(field: Field, text: string, refuse: Refuse): number {
  const named = field.names.indexOf(text);
  if (named >= 0) return field.least + named;
  const value = /^\d{1,4}$/.test(text) ? Number(text) : NaN;
  if (value >= field.least && value <= field.most) return value;
  throw refuse(text, `use ${field.allowed}`);
}

/** Quartz, and AWS with it, refuses a step longer than the field: every 60 minutes is `0 * ...`. */
function parseStep(field: Field, text: string | undefined, refuse: Refuse): number {
  if (text === undefined) return 1;
  const step = /^\d{1,4}$/.test(text) ? Number(text) : NaN;
  if (step >= 1 && step <= field.most) return step;
  throw refuse(`/${text}`, `use a step of 1-${field.most}`);
}

/**
 * A range whose end lies before its start goes on from the field's least value: hours `22-2` are 22,
 * 23, 0, 1, 2, and a step keeps its pace across the seam.
 */
function stride(field: Field, first: number, last: number, step: number): readonly number[] {
  const size = field.most - field.least + 1;
  const span = last < first ? last - first + size : last - first;
  return Array.from(
    { length: Math.floor(span / step) + 1 },
    (_, i) => field.least + ((first - field.least + i * step) % size),
  );
}

function parseDays(fields: SixFields, refuseIn: (field: ScheduleField) => Refuse): Days {
  const [, , dayOfMonth, , dayOfWeek] = fields;
  if ((dayOfMonth === '?') === (dayOfWeek === '?')) {
    const given = `${dayOfMonth} and ${dayOfWeek}`;
    throw refuseIn('day-of-month and day-of-week')(given, oneQuestionMarkCure(fields));
  }
  return dayOfWeek === '?'
    ? parseDayOfMonth(dayOfMonth, refuseIn('day-of-month'))
    : parseDayOfWeek(dayOfWeek, refuseIn('day-of-week'));
}

function parseDayOfMonth(text: string, refuse: Refuse): Days {
  if (text === 'L') return { kind: 'last-date' };
  if (text === 'LW') return { kind: 'last-working-day' };
  const [, nearest] = /^(\w+)W$/.exec(text) ?? [];
  if (nearest !== undefined) {
    return { kind: 'working-day-nearest', date: parseValue(dateField, nearest, refuse) };
  }
  // Quartz refuses L in a list and takes W for one date only; AWS documents neither.
  if (/[LW]/.test(text)) throw refuse(text, 'L, LW and 1W-31W stand alone; use one schedule for each');
  return { kind: 'dates', dates: parseValues(dateField, text, refuse) };
}

function parseDayOfWeek(text: string, refuse: Refuse): Days {
  // Quartz: the last day of the *week*, every week.
  if (text === 'L') return { kind: 'weekdays', weekdays: [7] };
  const [, last] = /^(\w+)L$/.exec(text) ?? [];
  if (last !== undefined) return { kind: 'last-weekday', weekday: parseValue(weekdayField, last, refuse) };
  const [, weekday, nth] = /^(\w+)#(\w+)$/.exec(text) ?? [];
  if (weekday !== undefined && nth !== undefined) {
    if (!/^[1-5]$/.test(nth)) throw refuse(text, 'use #1 to #5: a month has at most five of a weekday');
    return { kind: 'nth-weekday', weekday: parseValue(weekdayField, weekday, refuse), nth: Number(nth) };
  }
  if (/[L#]/.test(text)) throw refuse(text, 'L and # stand alone; use one schedule for each');
  return { kind: 'weekdays', weekdays: parseValues(weekdayField, text, refuse) };
}

// --- rate ---------------------------------------------------------------------------------------

const unitMs: ReadonlyMap<string, number> = new Map([
  ['minute', 60_000],
  ['hour', 3_600_000],
  ['day', 86_400_000],
]);

/** As long as all the years of cron. AWS publishes no bound; this one keeps every answer a valid Date. */
const longestRateMs = 230 * 366 * 86_400_000;

function parseRate(expression: string, body: string): RateSchedule {
  const refuse = (field: ScheduleField, given: string, cure: string) =>
    new ScheduleError(expression, field, given, cure);
  const [, digits, unit] = /^\s*(\d+)\s+([a-z]+)\s*$/i.exec(body) ?? [];
  if (digits === undefined || unit === undefined) {
    throw refuse('expression', expression, 'write a whole number and a unit, as in rate(5 minutes)');
  }

  const value = Number(digits);
  const singular = unit.toLowerCase().replace(/s$/, '');
  const ms = unitMs.get(singular);
  if (ms === undefined) throw refuse('rate unit', unit, unitCure(singular, value));
  if (value === 0) throw refuse('rate value', digits, 'the shortest is rate(1 minute)');
  if (value * ms > longestRateMs) throw refuse('rate value', digits, 'use a rate of less than 230 years');

  const written = `rate(${value} ${singular}${value === 1 ? '' : 's'})`;
  // 1 takes the singular, every other number the plural; AWS refuses the rest.
  if (unit !== (value === 1 ? singular : `${singular}s`)) throw refuse('rate unit', unit, `write ${written}`);
  return { kind: 'rate', expression: written, everyMs: value * ms };
}

// --- cures --------------------------------------------------------------------------------------
// What the writer most likely meant. A whole expression is only offered if it parses.

const sixNames = 'minutes hours day-of-month month day-of-week year';

function wrapInstead(given: string): string {
  const fields = splitFields(given);
  const meant = fields.length === 5 ? fromUnix(fields) : [fields];
  return (
    offer(meant) ?? `write cron(${sixNames}), such as cron(0 12 * * ? *), or a rate, such as rate(5 minutes)`
  );
}

function countCure(fields: readonly string[]): string {
  const form = `AWS takes six fields (${sixNames})`;
  const given = fields.length === 1 && fields[0] === '' ? 'none' : String(fields.length);
  const meant = fields.length === 5 ? fromUnix(fields) : fields.length === 7 ? [fields.slice(1)] : [];
  return `${form}, not ${given}; ${offer(meant) ?? 'write them all, as in cron(0 12 * * ? *)'}`;
}

/** Quartz puts seconds first and may leave out the year, so its `?` slips into AWS's year. */
function quartzCure(fields: SixFields): string {
  const meant = offer([[...fields.slice(1), '*']]);
  const quartz = meant === undefined ? '' : `; if the first field is Quartz's seconds, ${meant}`;
  return `use 1970-2199 or *, as ? is for a day field${quartz}`;
}

function oneQuestionMarkCure([minutes, hours, dayOfMonth, month, dayOfWeek, year]: SixFields): string {
  const onDate = (text: string) => [minutes, hours, text, month, '?', year];
  const onWeekday = [minutes, hours, '?', month, dayOfWeek, year];
  const rule = 'exactly one of the two must be ?';
  if (dayOfMonth === '?') return `${rule}; ${offer([onDate('*')]) ?? 'write * in the other'}`;
  if (dayOfWeek === '*') return `${rule}; ${offer([onDate(dayOfMonth)]) ?? 'write ? for one'}`;
  const meant = dayOfMonth === '*' ? [onWeekday] : [onDate(dayOfMonth), onWeekday];
  return `${rule}; ${offer(meant) ?? 'write ? for one'}`;
}

/**
 * Five Unix fields as AWS's six. Unix numbers weekdays from 0 (and knows Sunday as 7 too), and where
 * both day fields are given it runs on either, which takes two expressions on AWS.
 */
function fromUnix(fields: readonly string[]): readonly (readonly string[])[] {
  const [minutes = '', hours = '', date = '', month = '', weekday = ''] = fields;
  const onDate = [minutes, hours, date, month, '?', '*'];
  const onWeekday = [minutes, hours, '?', month, fromUnixWeekdays(weekday), '*'];
  if (weekday === '*' || weekday === '?') return [onDate];
  return date === '*' || date === '?' ? [onWeekday] : [onDate, onWeekday];
}

function fromUnixWeekdays(text: string): string {
  return text.split(',').map(fromUnixWeekday).join(',');
}

/** One item of a list. What Unix wouldn't take either comes back empty, for our own grammar to refuse. */
function fromUnixWeekday(item: string): string {
  if (!/\d/.test(item)) return item;
  const parts = /^(?:\*|([0-7])(?:-([0-7]))?)(?:\/([1-7]))?$/.exec(item);
  if (parts === null) return '';
  const [, from = '0', to, step] = parts;
  const shift = (day: number) => (day % 7) + 1;
  if (to === undefined && step === undefined) return String(shift(Number(from)));
  if (to !== undefined && step === undefined && Number(to) - Number(from) < 6) {
    return `${shift(Number(from))}-${shift(Number(to))}`;
  }
  const days = Array.from({ length: Number(to ?? 6) - Number(from) + 1 }, (_, i) => Number(from) + i);
  const kept = days.filter((_, i) => i % Number(step ?? 1) === 0).map(shift);
  return [...new Set(kept)].join(',');
}

/** An `at(...)` on the whole minute can be said as a cron that falls due once. */
function onceInstead(body: string): string {
  const [, year, month, day, hour, minute] =
    /^\s*(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):00\s*$/.exec(body) ?? [];
  const once = [minute, hour, day, month].map((part) => String(Number(part)));
  const meant = offer([[...once, '?', year ?? '']]);
  return `a job recurs, so it takes cron(...) or rate(...); ${meant ?? 'start a single run by hand'}`;
}

function unitCure(singular: string, value: number): string {
  if (singular === 'second') return 'the shortest is rate(1 minute)';
  if (singular === 'week') return `write rate(${value * 7} days)`;
  return 'use minute, hour or day, in the plural for more than 1';
}

function shapeCure(field: Field, item: string): string {
  if (item === '?') return `? is for day-of-month or day-of-week; use ${field.allowed}, or * for every value`;
  return `use *, a value (${field.allowed}), a range a-b, a step a/n, or a list a,b`;
}

function weekdayStepCure(values: readonly number[]): string {
  const names = values.map((value) => weekdayNames[value - 1]);
  return `day-of-week takes no step on AWS; list the days: ${names.join(',')}`;
}

function offer(meant: readonly (readonly string[])[]): string | undefined {
  const expressions = meant.map((fields) => `cron(${fields.join(' ')})`);
  if (expressions.length === 0 || !expressions.every(isSchedule)) return undefined;
  return expressions.length === 1
    ? `write ${expressions.join()}`
    : `write two schedules, ${expressions.join(' and ')}`;
}

function isSchedule(expression: string): boolean {
  try {
    parseSchedule(expression);
    return true;
  } catch (error) {
    if (error instanceof ScheduleError) return false;
    throw error;
  }
}
