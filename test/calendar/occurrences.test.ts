import { readFileSync } from 'node:fs';

import fc from 'fast-check';
import { expect, suite, test } from 'vitest';

import { describe } from '../../src/calendar/words.ts';
import {
  fallsDue,
  matches,
  nextAfter,
  occurrencesBetween,
  previousAtOrBefore,
} from '../../src/calendar/occurrences.ts';
import { ScheduleError, checkTimeZone, parseSchedule } from '../../src/calendar/expression.ts';
import { linkedZones } from '../../src/calendar/zones.ts';
import { bruteLast, bruteNext } from '../support/brute-cron.ts';

/** What a call refuses with; the test fails if it doesn't, or if the error is of another kind. */
function refusal(act: () => unknown): ScheduleError {
  try {
    act();
  } catch (error) {
    if (error instanceof ScheduleError) return error;
    throw error;
  }
  return expect.fail('nothing was refused');
}

const at = (text: string) => new Date(text);
const iso = (date: Date | undefined) => date?.toISOString().replace(':00.000Z', 'Z');
const cron = (fields: string) => parseSchedule(`cron(${fields})`);

interface Case {
  readonly cron: string;
  readonly timezone: string;
  readonly after: string;
  readonly valid: boolean;
  readonly next: readonly string[];
}

const cases = readFileSync(new URL('../cases/aws-cron.jsonl', import.meta.url), 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line) as Case);

suite("AWS's cases", () => {
  test.each(cases.filter(({ valid }) => valid))(
    '$cron in $timezone',
    ({ cron: fields, timezone, after, next }) => {
      const until = at('2200-01-01T00:00:00Z');
      const found = occurrencesBetween(cron(fields), at(after), until, timezone);
      const first = Array.from({ length: 4 }, () => found.next().value).filter((due) => due instanceof Date);
      expect(first.map(iso)).toEqual(next);
    },
  );

  const refused = {
    '0 10 * * * *': 'day-of-month and day-of-week',
    '0 10 ? * ? *': 'day-of-month and day-of-week',
    '60 * * * ? *': 'minutes',
    '* * * * *': 'expression',
    '0 10 ? * 8 *': 'day-of-week',
    '0 10 ? * MON#6 *': 'day-of-week',
    '0 10 * * ? 1969': 'year',
  };
  test('every refusal is of the field at fault', () => {
    const invalid = cases.filter(({ valid }) => !valid).map((one) => one.cron);
    const fields = invalid.map((one) => [one, refusal(() => cron(one)).field]);
    expect(Object.fromEntries(fields)).toEqual(refused);
  });
});

suite('what is read', () => {
  test('cron: the text for AWS and the values named', () => {
    expect(parseSchedule(' cron( 0/20  22-2 ?  jan,Jul-sep fri-mon 2026-2030/2 ) ')).toEqual({
      kind: 'cron',
      expression: 'cron(0/20 22-2 ? JAN,JUL-SEP FRI-MON 2026-2030/2)',
      minutes: [0, 20, 40],
      hours: [0, 1, 2, 22, 23],
      days: { kind: 'weekdays', weekdays: [1, 2, 6, 7] },
      months: [1, 7, 8, 9],
      years: [2026, 2028, 2030],
    });
  });

  test.each([
    ['0 0 28-3 * ? *', { kind: 'dates', dates: [1, 2, 3, 28, 29, 30, 31] }],
    ['0 0 L * ? *', { kind: 'last-date' }],
    ['0 0 lw * ? *', { kind: 'last-working-day' }],
    ['0 0 03W * ? *', { kind: 'working-day-nearest', date: 3 }],
    ['0 0 ? * L *', { kind: 'weekdays', weekdays: [7] }],
    ['0 0 ? * fril *', { kind: 'last-weekday', weekday: 6 }],
    ['0 0 ? * 6L *', { kind: 'last-weekday', weekday: 6 }],
    ['0 0 ? * TUE#2 *', { kind: 'nth-weekday', weekday: 3, nth: 2 }],
  ])('the days of %s', (fields, days) => {
    expect(cron(fields)).toMatchObject({ days });
  });

  test('a step keeps its pace where the range wraps around', () => {
    expect(cron('50-10/7 22-3/2 * NOV-FEB/2 ? *')).toMatchObject({
      minutes: [4, 50, 57],
      hours: [0, 2, 22],
      months: [1, 11],
    });
  });

  test.each([
    ['rate(1 minute)', 60_000],
    ['rate(90 minutes)', 5_400_000],
    ['rate(1 hour)', 3_600_000],
    ['rate(7 days)', 604_800_000],
  ])('%s', (expression, everyMs) => {
    expect(parseSchedule(expression)).toEqual({ kind: 'rate', expression, everyMs });
  });
});

const six = '(minutes hours day-of-month month day-of-week year)';
const shape = 'use *, a value (0-59), a range a-b, a step a/n, or a list a,b';
const unknown = `write cron${six}, such as cron(0 12 * * ? *), or a rate, such as rate(5 minutes)`;

suite('the likely mistakes, and the cure', () => {
  test.each([
    ['0 12 * * ? *', `expression "0 12 * * ? *": write cron(0 12 * * ? *)`],
    ['0 12 * * 1-5', `expression "0 12 * * 1-5": write cron(0 12 ? * 2-6 *)`],
    ['junk', `expression "junk": ${unknown}`],
    ['', `expression "": ${unknown}`],
    ['@daily', `expression "@daily": ${unknown}`],
    ['cron(0 12 * * *', `expression "cron(0 12 * * *": ${unknown}`],
    ['rate(5)', 'expression "rate(5)": write a whole number and a unit, as in rate(5 minutes)'],
    [
      'rate(1.5 hours)',
      'expression "rate(1.5 hours)": write a whole number and a unit, as in rate(5 minutes)',
    ],
    ['rate(1 minutes)', 'rate unit "minutes" in "rate(1 minutes)": write rate(1 minute)'],
    ['rate(5 minute)', 'rate unit "minute" in "rate(5 minute)": write rate(5 minutes)'],
    ['rate(0 minutes)', 'rate value "0" in "rate(0 minutes)": the shortest is rate(1 minute)'],
    ['rate(30 seconds)', 'rate unit "seconds" in "rate(30 seconds)": the shortest is rate(1 minute)'],
    ['rate(2 weeks)', 'rate unit "weeks" in "rate(2 weeks)": write rate(14 days)'],
    ['rate(84181 days)', 'rate value "84181" in "rate(84181 days)": use a rate of less than 230 years'],
    [
      'rate(5 moons)',
      'rate unit "moons" in "rate(5 moons)": use minute, hour or day, in the plural for more than 1',
    ],
    [
      'at(2027-03-15T09:30:00)',
      'expression "at(2027-03-15T09:30:00)": a job recurs, so it takes cron(...) or rate(...); write cron(30 9 15 3 ? 2027)',
    ],
    [
      'at(noon)',
      'expression "at(noon)": a job recurs, so it takes cron(...) or rate(...); start a single run by hand',
    ],
  ])('%s', (expression, message) => {
    expect(refusal(() => parseSchedule(expression)).message).toBe(`Invalid ${message}`);
  });

  test.each([
    // The fields of Unix cron: weekdays shifted by one, `?` in the day field that says nothing.
    ['0 12 * * *', 'write cron(0 12 * * ? *)'],
    ['*/5 9-17 * * 1-5', 'write cron(*/5 9-17 ? * 2-6 *)'],
    ['0 12 * * 0', 'write cron(0 12 ? * 1 *)'],
    ['0 12 * * 7', 'write cron(0 12 ? * 1 *)'],
    ['0 12 * * 5-7', 'write cron(0 12 ? * 6-1 *)'],
    ['0 12 * * 0-7', 'write cron(0 12 ? * 1,2,3,4,5,6,7 *)'],
    ['0 12 * * */2', 'write cron(0 12 ? * 1,3,5,7 *)'],
    ['0 12 * * 1,mon-wed', 'write cron(0 12 ? * 2,MON-WED *)'],
    ['0 12 1 * *', 'write cron(0 12 1 * ? *)'],
    ['0 12 1 * 1', 'write two schedules, cron(0 12 1 * ? *) and cron(0 12 ? * 2 *)'],
    ['0 12 * * 8', 'write them all, as in cron(0 12 * * ? *)'],
    ['0 12 * * MON-5', 'write them all, as in cron(0 12 * * ? *)'],
    ['0 12 * *', 'write them all, as in cron(0 12 * * ? *)'],
    // Quartz, with its seconds.
    ['0 0 12 * * ? *', 'write cron(0 12 * * ? *)'],
  ])('cron(%s), for its number of fields', (fields, cure) => {
    const error = refusal(() => cron(fields));
    const count = fields.split(' ').length;
    expect(error.field).toBe('expression');
    expect(error.cure).toBe(`AWS takes six fields ${six}, not ${count}; ${cure}`);
  });

  test.each([
    ['0 10 * * * *', '* and *', 'write cron(0 10 * * ? *)'],
    ['0 10 1 * * *', '1 and *', 'write cron(0 10 1 * ? *)'],
    ['0 10 * * MON *', '* and MON', 'write cron(0 10 ? * MON *)'],
    ['0 10 ? * ? *', '? and ?', 'write cron(0 10 * * ? *)'],
    ['0 10 1 * MON *', '1 and MON', 'write two schedules, cron(0 10 1 * ? *) and cron(0 10 ? * MON *)'],
    ['0 10 1 * 9 *', '1 and 9', 'write ? for one'],
  ])('cron(%s), for its question marks', (fields, given, cure) => {
    expect(refusal(() => cron(fields))).toMatchObject({
      expression: `cron(${fields})`,
      field: 'day-of-month and day-of-week',
      given,
      cure: `exactly one of the two must be ?; ${cure}`,
    });
  });

  const weekday = 'use 1-7 or SUN-SAT, where 1 is SUN and 7 is SAT';
  test.each([
    ['60 * * * ? *', 'minutes', '60', 'use 0-59'],
    ['-5 * * * ? *', 'minutes', '-5', shape],
    ['5- * * * ? *', 'minutes', '5-', shape],
    ['/5 * * * ? *', 'minutes', '/5', shape],
    ['1,,2 * * * ? *', 'minutes', '1,,2', shape],
    ['*/60 * * * ? *', 'minutes', '/60', 'use a step of 1-59'],
    ['*/0 * * * ? *', 'minutes', '/0', 'use a step of 1-59'],
    ['0 24 * * ? *', 'hours', '24', 'use 0-23'],
    ['0 9:30 * * ? *', 'hours', '9:30', shape.replace('0-59', '0-23')],
    ['0 ? * * ? *', 'hours', '?', '? is for day-of-month or day-of-week; use 0-23, or * for every value'],
    ['0 0 0 * ? *', 'day-of-month', '0', 'use 1-31'],
    ['0 0 32W * ? *', 'day-of-month', '32', 'use 1-31'],
    ['0 0 L-3 * ? *', 'day-of-month', 'L-3', 'L, LW and 1W-31W stand alone; use one schedule for each'],
    ['0 0 1W,15W * ? *', 'day-of-month', '1W,15W', 'L, LW and 1W-31W stand alone; use one schedule for each'],
    ['0 0 1 13 ? *', 'month', '13', 'use 1-12 or JAN-DEC'],
    ['0 0 1 JANUARY ? *', 'month', 'JANUARY', 'use 1-12 or JAN-DEC'],
    ['0 0 ? * 0 *', 'day-of-week', '0', weekday],
    ['0 0 ? * 8 *', 'day-of-week', '8', weekday],
    ['0 0 ? * 8L *', 'day-of-week', '8', weekday],
    ['0 0 ? * MON#6 *', 'day-of-week', 'MON#6', 'use #1 to #5: a month has at most five of a weekday'],
    ['0 0 ? * MON#0 *', 'day-of-week', 'MON#0', 'use #1 to #5: a month has at most five of a weekday'],
    ['0 0 ? * 3#1,6#3 *', 'day-of-week', '3#1,6#3', 'L and # stand alone; use one schedule for each'],
    [
      '0 0 ? * 2-6/2 *',
      'day-of-week',
      '2-6/2',
      'day-of-week takes no step on AWS; list the days: MON,WED,FRI',
    ],
    ['0 0 * * ? 1969', 'year', '1969', 'use 1970-2199'],
    ['0 0 * * ? 2200', 'year', '2200', 'use 1970-2199'],
    ['0 0 * * ? 2030-2027', 'year', '2030-2027', 'write the earlier year first'],
    [
      '0 0 12 * * ?',
      'year',
      '?',
      "use 1970-2199 or *, as ? is for a day field; if the first field is Quartz's seconds, write cron(0 12 * * ? *)",
    ],
    ['0 12 * * MON ?', 'year', '?', 'use 1970-2199 or *, as ? is for a day field'],
  ])('cron(%s)', (fields, field, given, cure) => {
    expect(refusal(() => cron(fields))).toMatchObject({ field, given, cure });
  });

  test('a message is one line of reasonable length, whatever was given', () => {
    const { message } = refusal(() => parseSchedule(`cron(1\n2 ${'x'.repeat(10_000)})`));
    expect(message).not.toContain('\n');
    expect(message.length).toBeLessThan(500);
  });

  test.each([
    ['Mars/Olympus', 'use an IANA name such as UTC, Europe/Berlin or America/New_York'],
    ['+01:00', 'use an IANA name such as UTC, Europe/Berlin or America/New_York'],
    ['', 'use an IANA name such as UTC, Europe/Berlin or America/New_York'],
    ['europe/berlin', 'write Europe/Berlin'],
  ])('the time zone "%s"', (zone, cure) => {
    expect(refusal(() => checkTimeZone(zone))).toMatchObject({ field: 'time zone', given: zone, cure });
    expect(refusal(() => nextAfter(cron('0 0 * * ? *'), at('2027-01-01'), zone)).cure).toBe(cure);
  });

  test.each(['UTC', 'Europe/Berlin', 'Asia/Kolkata', 'America/Argentina/Ushuaia', 'Etc/GMT+5'])(
    'the time zone %s is known',
    (zone) => {
      expect(() => checkTimeZone(zone)).not.toThrow();
    },
  );
});

test('this Node has a clock for every name that the engine itself does not list', () => {
  for (const timeZone of linkedZones) expect(() => new Intl.DateTimeFormat('en', { timeZone })).not.toThrow();
});

suite('whether a schedule falls due', () => {
  test.each([
    ['30 2 28 3 ? 2027', 'Europe/Berlin', '2027-01-01', null, false],
    ['30 2 28,29 3 ? 2027', 'Europe/Berlin', '2027-01-01', null, true],
    ['30 2 ? 3 SUNL *', 'Europe/Berlin', '2027-01-01', null, false],
    ['0 12 30 12 ? 2011', 'Pacific/Apia', '2011-12-01', null, false],
    ['0 12 30,31 12 ? 2011', 'Pacific/Apia', '2011-12-01', null, true],
    ['0 0 * * ? *', 'Pacific/Kiritimati', '2027-01-01T09:59Z', '2027-01-01T10:00Z', true],
    ['0 0 * * ? *', 'Pacific/Kiritimati', '2027-01-01T10:00Z', '2027-01-02T09:59Z', false],
    ['0 0 1 1 ? 2199', 'Asia/Tokyo', '2027-01-01', null, true],
    ['0 0 30 2 ? *', 'Asia/Tokyo', '2027-01-01', null, false],
  ])('cron(%s) in %s, after %s until %s: %s', (fields, zone, after, until, due) => {
    const schedule = cron(fields);
    const last = until === null ? null : at(until);
    expect(schedule.kind === 'cron' && fallsDue(schedule, at(after), last, zone)).toBe(due);
  });
});

suite('clocks that change', () => {
  const all = (fields: string, zone: string, after: string, until: string) =>
    [...occurrencesBetween(cron(fields), at(after), at(until), zone)].map(iso);

  test('a half hour that is skipped does not fall due, in lists and steps neither', () => {
    const found = all('0/30 2 * * ? *', 'America/New_York', '2027-03-13T12:00Z', '2027-03-15T12:00Z');
    expect(found).toEqual(['2027-03-15T06:00Z', '2027-03-15T06:30Z']);
  });

  test('an hour that is repeated falls due once, the first time round', () => {
    const found = all('0/30 1-2 * * ? *', 'America/New_York', '2026-11-01T04:00Z', '2026-11-01T12:00Z');
    expect(found).toEqual([
      '2026-11-01T05:00Z',
      '2026-11-01T05:30Z',
      '2026-11-01T07:00Z',
      '2026-11-01T07:30Z',
    ]);
  });

  test('during the second time round, the last occurrence is of the first', () => {
    const second = at('2026-11-01T06:10Z');
    const schedule = cron('0/15 * * * ? *');
    expect(iso(previousAtOrBefore(schedule, second, 'America/New_York'))).toBe('2026-11-01T05:45Z');
    expect(iso(nextAfter(schedule, second, 'America/New_York'))).toBe('2026-11-01T07:00Z');
    expect(matches(schedule, at('2026-11-01T05:15Z'), 'America/New_York')).toBe(true);
    expect(matches(schedule, at('2026-11-01T06:15Z'), 'America/New_York')).toBe(false);
  });

  test('a day that is skipped has no occurrence', () => {
    const found = all('0 12 * * ? *', 'Pacific/Apia', '2011-12-29T00:00Z', '2012-01-01T00:00Z');
    expect(found).toEqual(['2011-12-29T22:00Z', '2011-12-30T22:00Z', '2011-12-31T22:00Z']);
  });

  test('a rate takes no notice', () => {
    const found = occurrencesBetween(
      parseSchedule('rate(12 hours)'),
      at('2027-03-13T17:00Z'),
      at('2027-03-15T00:00Z'),
      'America/New_York',
    );
    expect([...found].map(iso)).toEqual(['2027-03-14T05:00Z', '2027-03-14T17:00Z']);
  });
});

suite('a rate and its phase', () => {
  const schedule = parseSchedule('rate(90 minutes)');
  const anchor = at('2027-01-01T00:00:07Z');

  test.each([
    ['2027-01-01T00:00:06.999Z', '2026-12-31T22:30:07.000Z', '2027-01-01T00:00:07.000Z'],
    ['2027-01-01T00:00:07.000Z', '2027-01-01T00:00:07.000Z', '2027-01-01T01:30:07.000Z'],
    ['2027-01-01T10:00:00.000Z', '2027-01-01T09:00:07.000Z', '2027-01-01T10:30:07.000Z'],
    ['2026-12-31T20:00:00.000Z', '2026-12-31T19:30:07.000Z', '2026-12-31T21:00:07.000Z'],
  ])('around %s', (instant, previous, next) => {
    expect(previousAtOrBefore(schedule, at(instant), 'UTC', anchor)?.toISOString()).toBe(previous);
    expect(nextAfter(schedule, at(instant), 'UTC', anchor)?.toISOString()).toBe(next);
    expect(matches(schedule, at(instant), 'UTC', anchor)).toBe(instant === previous);
  });

  test('without an anchor, the instant asked about is one', () => {
    const instant = at('2027-01-01T10:00:00Z');
    expect(iso(nextAfter(schedule, instant))).toBe('2027-01-01T11:30Z');
    expect(previousAtOrBefore(schedule, instant)).toEqual(instant);
    expect(matches(schedule, instant)).toBe(true);
    const found = occurrencesBetween(schedule, instant, at('2027-01-01T13:00:00Z'));
    expect([...found].map(iso)).toEqual(['2027-01-01T11:30Z', '2027-01-01T13:00Z']);
  });
});

suite('the ends of time', () => {
  test.each([
    ['0 0 31 2 ? *', '2027-01-01'],
    ['0 0 30W 2 ? *', '2027-01-01'],
    ['0 0 29 2 ? 2100', '2027-01-01'],
    ['* * * * ? 2026', '2026-12-31T23:59:00Z'],
    ['* * * * ? *', '2199-12-31T23:59:00Z'],
  ])('%s has no occurrence after %s', (fields, after) => {
    expect(nextAfter(cron(fields), at(after))).toBeUndefined();
  });

  test.each([
    ['0 0 31 2 ? *', '2027-01-01'],
    ['* * * * ? 2028', '2027-12-31T23:59:59.999Z'],
    ['* * * * ? *', '1969-12-31T23:59:59.999Z'],
  ])('%s has no occurrence before %s', (fields, before) => {
    expect(previousAtOrBefore(cron(fields), at(before))).toBeUndefined();
  });

  test('an occurrence is due at its millisecond, not before', () => {
    const noon = cron('0 12 * * ? *');
    expect(iso(previousAtOrBefore(noon, at('2027-01-02T12:00:00.000Z')))).toBe('2027-01-02T12:00Z');
    expect(iso(previousAtOrBefore(noon, at('2027-01-02T11:59:59.999Z')))).toBe('2027-01-01T12:00Z');
    expect(iso(nextAfter(noon, at('2027-01-02T11:59:59.999Z')))).toBe('2027-01-02T12:00Z');
    expect(iso(nextAfter(noon, at('2027-01-02T12:00:00.000Z')))).toBe('2027-01-03T12:00Z');
    expect(matches(noon, at('2027-01-02T12:00:00.000Z'))).toBe(true);
    expect(matches(noon, at('2027-01-02T12:00:00.001Z'))).toBe(false);
    expect(matches(noon, at('2027-01-02T12:00:01.000Z'))).toBe(false);
  });

  test('W stays within its month, and leaves out a month that lacks the date', () => {
    const until = at('2200-01-01');
    const first = (fields: string, after: string) => {
      const found = occurrencesBetween(cron(fields), at(after), until);
      return Array.from({ length: 3 }, () => iso(found.next().value ?? undefined)?.slice(0, 10));
    };
    // The 1st of August 2026 is a Saturday, the 31st of January 2027 a Sunday.
    expect(first('0 0 1W * ? *', '2026-07-15')).toEqual(['2026-08-03', '2026-09-01', '2026-10-01']);
    expect(first('0 0 31W * ? *', '2027-01-15')).toEqual(['2027-01-29', '2027-03-31', '2027-05-31']);
  });
});

suite('in plain English', () => {
  test.each([
    ['cron(0 10 * * ? *)', 'At 10:00, every day, UTC'],
    ['cron(0/15 * * * ? *)', 'Every 15 minutes, UTC'],
    ['cron(* * ? * * *)', 'Every minute, UTC'],
    ['cron(15 12 ? * MON-FRI *)', 'At 12:15, Monday through Friday, UTC'],
    ['cron(0 18 ? * 2-6 *)', 'At 18:00, Monday through Friday, UTC'],
    ['cron(0 9 ? * 1 *)', 'At 09:00, only on Sunday, UTC'],
    ['cron(0 10 L * ? *)', 'At 10:00, on the last day of the month, UTC'],
    ['cron(0 10 LW * ? *)', 'At 10:00, on the last weekday of the month, UTC'],
    ['cron(0 10 3W * ? *)', 'At 10:00, on the weekday nearest day 3 of the month, UTC'],
    ['cron(0 10 ? * 6#3 *)', 'At 10:00, on the third Friday of the month, UTC'],
    ['cron(0 10 ? * FRIL *)', 'At 10:00, on the last Friday of the month, UTC'],
    ['cron(0 10 ? * L *)', 'At 10:00, only on Saturday, UTC'],
    ['cron(0 22-2 * * ? *)', 'Every hour, between 22:00 and 02:00, every day, UTC'],
    ['cron(0 10 * * ? 2026/2)', 'At 10:00, every day, every 2 years, 2026 through 2199, UTC'],
    ['cron(0 10 * * ? 2026-2034/4)', 'At 10:00, every day, every 4 years, 2026 through 2034, UTC'],
    ['cron(0 10 *,5 * ? *)', 'At 10:00, every day, UTC'],
    [
      'cron(0-0 10-10 1 JAN-MAR,6 ? *)',
      'At 10:00, on day 1 of the month, only in January, February, March, and June, UTC',
    ],
    [
      'cron(0 10 1 JAN/3 ? *)',
      'At 10:00, on day 1 of the month, only in January, April, July, and October, UTC',
    ],
    ['rate(1 hour)', 'Every hour'],
    ['rate(5 minutes)', 'Every 5 minutes'],
  ])('%s', (expression, english) => {
    expect(describe(parseSchedule(expression))).toBe(english);
  });

  test('the zone is named', () => {
    expect(describe(cron('30 2 * * ? *'), 'America/New_York')).toBe('At 02:30, every day, America/New_York');
  });
});

// --- random expressions -------------------------------------------------------------------------

/** Another seed, to search further: `SCHEDULE_SEED=7 npx vitest run test/calendar/occurrences.test.ts`. */
const seed = Number(process.env['SCHEDULE_SEED'] ?? 20261129);

const monthNames = ['JAN', 'Feb', 'mar', 'APR', 'MAY', 'JUN', 'JUL', 'AUG', 'SEP', 'OCT', 'NOV', 'DEC'];
const weekdayNames = ['SUN', 'Mon', 'tue', 'WED', 'THU', 'FRI', 'SAT'];

interface Span {
  readonly least: number;
  readonly most: number;
  readonly names?: readonly string[];
  readonly steps?: boolean;
  readonly wraps?: boolean;
}

function valueText({ least, most, names = [] }: Span): fc.Arbitrary<string> {
  return fc.tuple(fc.integer({ min: least, max: most }), fc.boolean()).map(([value, named]) => {
    const name = names[value - least];
    return named && name !== undefined ? name : String(value);
  });
}

function itemText(span: Span): fc.Arbitrary<string> {
  const value = valueText(span);
  const ordered = fc
    .tuple(fc.integer({ min: span.least, max: span.most }), fc.integer({ min: span.least, max: span.most }))
    .map(([a, b]) => `${Math.min(a, b)}-${Math.max(a, b)}`);
  const range = span.wraps === false ? ordered : fc.tuple(value, value).map((ends) => ends.join('-'));
  const step = fc.integer({ min: 1, max: Math.min(span.most, 59) });
  const stepped = fc.tuple(fc.oneof(value, range, fc.constant('*')), step).map((parts) => parts.join('/'));
  return span.steps === false ? fc.oneof(value, value, range) : fc.oneof(value, value, range, stepped);
}

function listText(span: Span): fc.Arbitrary<string> {
  return fc.array(itemText(span), { minLength: 1, maxLength: 3 }).map((items) => items.join());
}

const everyOr = (text: fc.Arbitrary<string>, every: number, other: number) =>
  fc.oneof({ weight: every, arbitrary: fc.constant('*') }, { weight: other, arbitrary: text });

const minutesText = everyOr(listText({ least: 0, most: 59 }), 1, 5);
const hoursText = everyOr(listText({ least: 0, most: 23 }), 2, 5);
const monthText = everyOr(listText({ least: 1, most: 12, names: monthNames }), 3, 2);
const yearText = everyOr(
  fc.oneof(
    listText({ least: 2024, most: 2032, wraps: false }),
    listText({ least: 1970, most: 2199, wraps: false }),
  ),
  5,
  1,
);
const weekdayText = valueText({ least: 1, most: 7, names: weekdayNames });
const daysText: fc.Arbitrary<readonly [string, string]> = fc.oneof(
  everyOr(listText({ least: 1, most: 31 }), 1, 3).map((text) => [text, '?'] as const),
  fc.constantFrom('L', 'LW', 'l', 'lw').map((text) => [text, '?'] as const),
  fc.integer({ min: 1, max: 31 }).map((date) => [`${date}W`, '?'] as const),
  everyOr(listText({ least: 1, most: 7, names: weekdayNames, steps: false }), 1, 3).map(
    (text) => ['?', text] as const,
  ),
  fc.oneof(weekdayText, fc.constant('')).map((weekday) => ['?', `${weekday}L`] as const),
  fc.tuple(weekdayText, fc.integer({ min: 1, max: 5 })).map((parts) => ['?', parts.join('#')] as const),
);
const cronText = fc
  .tuple(minutesText, hoursText, daysText, monthText, yearText)
  .map(([minutes, hours, [date, weekday], month, year]) =>
    [minutes, hours, date, month, weekday, year].join(' '),
  );

/** Zones with the instants of some of their changes, forward and back, of hours, half an hour and a day. */
const changes = [
  ['America/New_York', '2027-03-14T07:00Z', '2026-11-01T06:00Z'],
  ['Europe/Berlin', '2027-03-28T01:00Z', '2026-10-25T01:00Z', '2100-03-28T01:00Z'],
  ['America/Sao_Paulo', '2018-11-04T03:00Z', '2018-02-18T02:00Z'],
  ['Australia/Lord_Howe', '2026-10-03T15:30Z', '2027-04-03T15:00Z'],
  ['Antarctica/Troll', '2027-03-28T01:00Z', '2026-10-25T01:00Z'],
  ['Africa/Casablanca', '2026-02-15T02:00Z', '2026-03-22T02:00Z'],
  ['Pacific/Apia', '2011-12-30T10:00Z', '2012-03-31T14:00Z'],
  ['Asia/Kathmandu', '1985-12-31T18:30Z'],
] as const;

const between = (from: string, until: string) =>
  fc.integer({ min: Date.parse(from), max: Date.parse(until) }).map((ms) => new Date(ms));
const anyInstant = fc.oneof(
  { weight: 3, arbitrary: between('2024-01-01', '2033-01-01') },
  { weight: 1, arbitrary: between('1974-01-01', '2199-12-31') },
);
const nearChange = fc
  .tuple(
    fc.constantFrom(...changes.flatMap(([zone, ...instants]) => instants.map((at) => ({ zone, at })))),
    fc.integer({ min: -36 * 60, max: 36 * 60 }),
    fc.constantFrom(0, 1, 59_999),
  )
  .map(([{ zone, at }, minutes, ms]) => ({
    zone,
    instant: new Date(Date.parse(at) + minutes * 60_000 + ms),
  }));
const place = fc.oneof(
  { weight: 5, arbitrary: anyInstant.map((instant) => ({ zone: 'UTC', instant })) },
  { weight: 4, arbitrary: nearChange },
  {
    weight: 1,
    arbitrary: fc
      .tuple(fc.constantFrom(...changes.map(([zone]) => zone)), between('2027-01-01', '2027-07-01'))
      .map(([zone, instant]) => ({ zone, instant })),
  },
);

suite('10,000 random expressions, against a brute-force reading', () => {
  test(
    'next and previous are the nearest occurrences, and every answer matches',
    { timeout: 240_000 },
    () => {
      const property = fc.property(cronText, place, (text, { zone, instant }) => {
        const schedule = cron(text);
        const next = nextAfter(schedule, instant, zone);
        const previous = previousAtOrBefore(schedule, instant, zone);
        expect(iso(next)).toBe(iso(bruteNext(text, zone, instant)));
        expect(iso(previous)).toBe(iso(bruteLast(text, zone, instant)));
        expect(matches(schedule, instant, zone)).toBe(previous?.getTime() === instant.getTime());
        if (previous !== undefined) expect(matches(schedule, previous, zone)).toBe(true);
        if (next === undefined) return;
        expect(matches(schedule, next, zone)).toBe(true);
        expect(previousAtOrBefore(schedule, next, zone)).toEqual(next);
        expect(previousAtOrBefore(schedule, new Date(next.getTime() - 1), zone)).toEqual(previous);
      });
      fc.assert(property, { seed, numRuns: 10_000 });
    },
  );

  test('whether it falls due at all is the same without a clock of the zone', { timeout: 240_000 }, () => {
    const property = fc.property(cronText, nearChange, fc.nat(50), (text, { zone, instant }, days) => {
      const schedule = cron(text);
      if (schedule.kind !== 'cron') return;
      const until = new Date(instant.getTime() + days * 86_400_000);
      const next = bruteNext(text, zone, instant);
      expect(fallsDue(schedule, instant, until, zone)).toBe(next !== undefined && next <= until);
      expect(fallsDue(schedule, instant, null, zone)).toBe(next !== undefined);
    });
    fc.assert(property, { seed, numRuns: 2_000 });
  });

  test('each is described without a gap in the sentence', () => {
    const property = fc.property(cronText, (text) => {
      expect(describe(cron(text))).not.toMatch(/undefined|null|NaN|\*|, ,| {2}/);
    });
    fc.assert(property, { seed, numRuns: 1_000 });
  });

  test('the text for AWS means the same', () => {
    const property = fc.property(cronText, (text) => {
      const schedule = cron(text);
      expect(parseSchedule(schedule.expression)).toEqual(schedule);
    });
    fc.assert(property, { seed, numRuns: 1_000 });
  });
});
