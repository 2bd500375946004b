/**
 * Schedules in plain English, worded by cronstrue. A module of its own because cronstrue cannot be
 * dropped from a bundle once its importer is in it: whatever only computes times shall not carry it.
 */
import cronstrue from 'cronstrue';

import type { CronSchedule, Schedule } from './schedule.ts';

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
  const fields = schedule.expression.slice('cron('.length, -1).split(' ').map(plainField);
  return cronstrue.toString(['0', ...fields].join(' '), {
    dayOfWeekStartIndexZero: false,
    use24HourTimeFormat: true,
    // Verbose says 'every day' after a time of day, but also 'every hour, every day' after 'every minute'.
    verbose: schedule.hours.length < 24,
  });
}

/** cronstrue reads `*` in a list as a value, and lets a step in the years run on to 9999. */
function plainField(field: string): string {
  const items = field.split(',');
  if (items.includes('*')) return '*';
  return items.map((item) => item.replace(/^(\d{4})\//, '$1-2199/')).join(',');
}

function describeRate(expression: string): string {
  const [, value, unit] = /^rate\((\d+) (\w+)\)$/.exec(expression) ?? [];
  return value === '1' ? `Every ${unit ?? ''}` : `Every ${value ?? ''} ${unit ?? ''}`;
}
