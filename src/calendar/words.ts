/**
 * Schedules in plain English, worded by cronstrue. A module of its own because cronstrue cannot be
 * dropped from a bundle once its importer is in it: whatever only computes times shall not carry it.
 */
import cronstrue from 'cronstrue';

import type { CronSchedule, Schedule } from './expression.ts';

/**
 * `At 10:00, Monday through Friday, UTC` or `Every 5 minutes`. The zone is named for a cron only: a
 * rate is the same everywhere.
 *
 * @param timeZone IANA name, shown as given.
 */
export function describe(schedule: Schedule, timeZone = 'UTC'): string {
  return schedule.kind === 'cron'
    ? `${describeCron(schedule)}, ${timeZone}`
    : describeRate(schedule.expression);
}

function describeCron(schedule: CronSchedule): string {
  const { expression, minutes, hours, days, months, years } = schedule;
  const texts = expression.slice('cron('.length, -1).split(' ');
  // A day field that is a rule of its own, such as LW or 6#3, has no values: cronstrue knows it by name.
  const dates = days.kind === 'dates' ? days.dates : [];
  const weekdays = days.kind === 'weekdays' ? days.weekdays : [];
  const values = [minutes, hours, dates, months, weekdays, years];
  const fields = texts.map((text, i) => plainField(text, values[i] ?? [], sizes[i] ?? 0));
  return cronstrue.toString(['0', ...fields].join(' '), {
    dayOfWeekStartIndexZero: false,
    use24HourTimeFormat: true,
    // Verbose says 'every day' after a time of day, but also 'every hour, every day' after 'every minute'.
    verbose: hours.length < 24,
  });
}

/** How many values each field has when it names them all. */
const sizes = [60, 24, 31, 12, 7, 230];

/**
 * cronstrue words what most people write. Beyond that it goes astray: it reads `*` in a list as a value,
 * garbles months in a list of ranges, calls 0-0 every minute of the hour, and lets steps in the years
 * run on to 9999. So it gets those as the values they name.
 */
function plainField(text: string, values: readonly number[], size: number): string {
  if (values.length === 0) return text;
  if (values.length === size) return '*';
  const bounded = text.replace(/^(\d{4})\//, '$1-2199/');
  const common = /^(?:[\w,]+|\w+-\w+|(?:\*|\d+(?:-\d+)?)\/\d+)$/;
  return values.length > 1 && common.test(bounded) ? bounded : values.join();
}

function describeRate(expression: string): string {
  const [, value, unit] = /^rate\((\d+) (\w+)\)$/.exec(expression) ?? [];
  return value === '1' ? `Every ${unit ?? ''}` : `Every ${value ?? ''} ${unit ?? ''}`;
}
