import { defineJob, type Job, type JobOptions } from '../../src/job.ts';

/** What a job's function does in the simulation: pass some virtual time, and fail now and then. */
export type Behaviour = (lastsMs: number) => JobOptions['work'];

const minute = 60_000;

/** What shares the database, each with two versions: before and after the quarter's redeployment. */
export interface ServicePlan {
  readonly deployment: string;
  readonly versions: readonly (readonly Job[])[];
}

/** Two services with jobs of one name, and with a lock that both name. */
export function services(behaviour: Behaviour): readonly ServicePlan[] {
  const make = (options: Omit<JobOptions, 'work'>, lastsMs = 0): Job =>
    // A lock delay passes in real time. What writes through tx alone needs none; those that have one say so.
    defineJob({ leaseMs: 2_000, lockDelayMs: 0, ...options, work: behaviour(lastsMs) });
  return [
    { deployment: 'shop-prod', versions: ofShop(make) },
    { deployment: 'billing-prod', versions: ofBilling(make) },
  ];
}

type Make = (options: Omit<JobOptions, 'work'>, lastsMs?: number) => Job;

/** Some names of the shop's, with other schedules and policies; `ledger` takes the lock of its reports. */
function ofBilling(make: Make): ServicePlan['versions'] {
  const jobs = [
    make({ name: 'half-hourly', schedule: 'cron(15/30 * * * ? *)', catchUp: 'one', lockDelayMs: 2_000 }),
    make({ name: 'expire-rate', schedule: 'rate(3 hours)' }),
    make({ name: 'paused-a-while', schedule: 'cron(25 0/2 * * ? *)', catchUp: 'all' }),
    make({ name: 'ledger', schedule: 'cron(45 0/2 * * ? *)', lock: 'reports', catchUp: 'one' }, 10 * minute),
  ];
  return [jobs, jobs];
}

/** A dozen jobs of different policy. */
function ofShop(make: Make): ServicePlan['versions'] {
  const always = [
    make({ name: 'expire-rate', schedule: 'rate(2 hours)', catchUp: 'one' }),
    make({
      name: 'berlin-daily',
      schedule: { at: 'cron(30 2 * * ? *)', timeZone: 'Europe/Berlin' },
      catchUp: 'all',
    }),
    make({
      name: 'new-york-daily',
      schedule: { at: 'cron(30 1 * * ? *)', timeZone: 'America/New_York' },
      catchUp: 'one',
    }),
    make({
      name: 'sydney-hourly',
      schedule: { at: 'cron(0 * * * ? *)', timeZone: 'Australia/Sydney' },
      retries: 1,
    }),
    make({ name: 'half-hourly', schedule: 'cron(0/30 * * * ? *)', catchUp: 'all', catchUpLimit: 20 }),
    make({
      name: 'weekdays',
      schedule: 'cron(0 9 ? * MON-FRI *)',
      catchUp: 'all',
      startDeadlineMs: 60 * minute,
    }),
    make({ name: 'twice-a-day', schedule: ['cron(0 6 * * ? *)', 'cron(30 18 * * ? *)'], catchUp: 'all' }),
    make({
      name: 'by-hand-if-lost',
      schedule: 'cron(20 0/2 * * ? *)',
      afterLost: 'hold',
      retries: 0,
      lockDelayMs: 2_000,
    }),
    make({ name: 'long-report', schedule: 'cron(40 0/3 * * ? *)', lock: 'reports' }, 20 * minute),
    make({ name: 'short-report', schedule: 'cron(50 0/4 * * ? *)', lock: 'reports', catchUp: 'one' }),
    make({ name: 'two-places', schedule: 'cron(5,35 0/6 * * ? *)', places: 2, retries: 1 }, 40 * minute),
    make({ name: 'overlapping', schedule: 'cron(10 0/2 * * ? *)', overlap: 'allow' }, 90 * minute),
    make({ name: 'paused-a-while', schedule: 'cron(25 0/2 * * ? *)', catchUp: 'all' }),
    // What it catches up takes so long that slots fall due meanwhile.
    make({ name: 'slow', schedule: 'cron(12 * * * ? *)', catchUp: 'all', catchUpLimit: 15 }, 25 * minute),
  ];
  const first = [
    make({ name: 'switched-off', schedule: 'cron(35 0/2 * * ? *)' }),
    make({ name: 'rescheduled', schedule: 'cron(15 0/3 * * ? *)', catchUp: 'all' }),
  ];
  const second = [
    make({ name: 'switched-off', schedule: 'cron(35 0/2 * * ? *)', enabled: false }),
    make({ name: 'rescheduled', schedule: 'cron(45 0/4 * * ? *)', catchUp: 'all' }),
    make({ name: 'added', schedule: 'cron(55 0/2 * * ? *)', catchUp: 'all' }),
  ];
  return [
    [...always, ...first],
    [...always, ...second],
  ];
}
