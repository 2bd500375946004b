/**
 * `npm run duplicates`: delivers one slot many times at once and, when all have been answered, as many times again.
 * One of them runs; every other is skipped, and says why. Exits with 0 only if so.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Job } from '../../src/job.ts';
import { previousAtOrBefore } from '../../src/calendar/occurrences.ts';
import type { DriverName } from '../../src/postgres/driver.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';
import { slotName } from '../../src/path/trigger.ts';
import { eventOf } from '../local/clock.ts';
import { freePort } from '../local/postgres.ts';
import {
  deliver,
  findLocal,
  localFolderOf,
  startLocal,
  untilSignalled,
  type LocalAddress,
} from '../local/setup.ts';
import { openProject, type Project } from '../project.ts';
import { visible } from '../terminal.ts';
import { asTyped, readFlags, UsageError, wholeFrom, type Given } from './flags.ts';

const command = {
  name: asTyped('npm run duplicates', 'npx cronce duplicates'),
  says: 'delivers one slot of a job many times at once, and as many times again after that',
  flags: {
    job: { value: 'NAME', says: 'which job' },
    times: { value: 'N', says: 'how many at once, 1 to 100' },
    slot: {
      value: 'TIME',
      says: 'such as 2026-11-29T12:00:00Z; default: the last one of which nothing is known',
    },
    driver: { value: 'NAME', says: 'pg or neon' },
    examples: { says: 'makes the example jobs’ tables in your own DATABASE_URL' },
    json: { says: 'the counts alone, as JSON' },
  },
} as const;
const minuteMs = 60_000;
/** Each is a worker thread and a connection. */
const mostTimes = 100;

interface Wanted {
  readonly project: Project;
  readonly job: Job;
  readonly times: number;
  readonly slot: Date | undefined;
  readonly driver: DriverName | undefined;
  readonly json: boolean;
  readonly examples: boolean;
}

export async function duplicates(args: readonly string[]): Promise<number> {
  const flags = readFlags(command, args);
  const wanted = wantedBy(flags, await openProject(process.cwd()));
  const stopping = untilSignalled();
  const { address, stop } = await reach(wanted, stopping);
  try {
    const slot = wanted.slot ?? (await freshSlot(address, wanted.job));
    const results = await deliverTwice(address, wanted, slot, stopping);
    const summary = summaryOf(results);
    console.log(wanted.json ? JSON.stringify(summary) : report(wanted, slot, address, results));
    return summary.succeeded === 1 && summary.succeeded + summary.skipped === summary.deliveries ? 0 : 1;
  } finally {
    await stop();
  }
}

// --- what is wanted -----------------------------------------------------------------------------

function wantedBy(
  { job, times, slot, driver, json = false, examples = false }: Given<typeof command>,
  project: Project,
): Wanted {
  return {
    project,
    job: jobNamed(job, project),
    times: timesFrom(times),
    slot: slotFrom(slot),
    driver: driverFrom(driver),
    json,
    examples,
  };
}

function jobNamed(given: string | undefined, { jobs }: Project): Job {
  const known = jobs.map(({ name }) => name).join(', ');
  if (given === undefined) throw new UsageError(`--job is missing; give one of ${known}`);
  const job = jobs.find(({ name }) => name === given);
  if (job === undefined) throw new UsageError(`no job is named ${JSON.stringify(given)}; known: ${known}`);
  return job;
}

function timesFrom(given: string | undefined): number {
  if (given === undefined)
    throw new UsageError(`--times is missing; give a whole number from 1 to ${mostTimes}`);
  return wholeFrom('--times', given, 1, mostTimes);
}

/** As EventBridge writes times; a slot knows no fractions of a second. */
function slotFrom(given: string | undefined): Date | undefined {
  if (given === undefined) return undefined;
  const isTime =
    /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)$/.test(given) && !Number.isNaN(Date.parse(given));
  if (isTime) return new Date(given);
  throw new UsageError(`--slot is ${JSON.stringify(given)}; allowed: a time such as 2026-11-29T12:00:00Z`);
}

function driverFrom(given: string | undefined): DriverName | undefined {
  if (given === undefined || given === 'pg' || given === 'neon') return given;
  throw new UsageError(`--driver is ${JSON.stringify(given)}; allowed: pg, neon`);
}

// --- where --------------------------------------------------------------------------------------

interface Reached {
  readonly address: LocalAddress;
  readonly stop: () => Promise<void>;
}

/** The set-up that runs already, unless it has another driver than the one that is wanted; else one for this once. */
async function reach({ project, job, driver, examples }: Wanted, signal: AbortSignal): Promise<Reached> {
  const localFolder = localFolderOf(project.root);
  const running = await findLocal(localFolder);
  if (running !== undefined && (driver === undefined || driver === running.driver))
    return { address: running, stop: async () => undefined };
  if (process.env['DATABASE_URL'] && !examples && project.exampleNames.includes(job.name))
    throw new UsageError(
      `${job.name} is an example, and needs tables in your database, in the schema app; --examples makes them`,
    );
  console.error('Starting a set-up for this once …');
  const folder = join(localFolder, `duplicates-${process.pid}`);
  const forget = async () => rm(folder, { recursive: true, force: true });
  const ports = { httpPort: await freePort(), lambdaPort: await freePort() };
  const environment = process.env;
  const own = { ...(driver && { driver }), ...(examples && { examples }) };
  const options = { project, ...ports, folder, environment, signal, ...own };
  const local = await startLocal(options).catch(async (error: unknown) => {
    await forget();
    throw error;
  });
  return { address: local, stop: async () => local.stop().finally(forget) };
}

/** The last slots up to now, latest first: a cron's own, since no others of it run; of a rate any minute will do. */
function slotsUpTo(now: number, job: Job): readonly Date[] {
  const [first] = job.schedules;
  if (first?.schedule.kind !== 'cron')
    return Array.from({ length: 24 * 60 }, (_, ago) => new Date(now - ago * minuteMs));
  const slots: Date[] = [];
  const before = (ms: number) => previousAtOrBefore(first.schedule, new Date(ms), first.timeZone);
  for (let at = before(now); at && slots.length < 200; at = before(at.getTime() - 1)) slots.push(at);
  return slots;
}

/** The last slot of which nothing is known yet, so that the run can be repeated. */
async function freshSlot({ databaseUrl }: LocalAddress, job: Job): Promise<Date> {
  const now = Math.floor(Date.now() / minuteMs) * minuteMs;
  const slots = slotsUpTo(now, job);
  const session = await Session.open({ url: databaseUrl, driver: 'pg', connectTimeoutMs: 10_000 });
  try {
    const query = 'SELECT DISTINCT slot FROM cronce.run WHERE job = $1 AND slot = ANY ($2)';
    const { rows } = await session.query(query, [job.name, slots.map(slotName)]);
    const taken = new Set((rows as { slot: string }[]).map(({ slot }) => slot));
    return slots.find((slot) => !taken.has(slotName(slot))) ?? new Date(now);
  } finally {
    await session.close();
  }
}

// --- deliveries ---------------------------------------------------------------------------------

interface Result {
  readonly outcome: string;
  readonly reason: string;
  readonly ms: number;
}

async function deliverTwice(
  address: LocalAddress,
  { job, times }: Wanted,
  slot: Date,
  signal: AbortSignal,
): Promise<Result[]> {
  const event = eventOf(job.name, 0, slot, job.schedules[0]?.via ?? 'rule');
  const batch = async () =>
    Promise.all(Array.from({ length: times }, async () => deliverOnce(address, job, event, signal)));
  return [...(await batch()), ...(await batch())];
}

async function deliverOnce(
  address: LocalAddress,
  job: Job,
  event: unknown,
  signal: AbortSignal,
): Promise<Result> {
  const began = performance.now();
  const { failed, payload } = await deliver(address, job.name, event, { signal });
  const ms = Math.round(performance.now() - began);
  if (failed)
    return { outcome: 'failed', reason: (payload as { errorMessage?: string }).errorMessage ?? '', ms };
  const { status, skipReason } = payload as Pick<RunRecord, 'status' | 'skipReason'>;
  return { outcome: status, reason: skipReason ?? '', ms };
}

// --- what came of it ----------------------------------------------------------------------------

interface Summary {
  readonly deliveries: number;
  readonly succeeded: number;
  /** With a reason; a skip without one would be no skip. */
  readonly skipped: number;
  readonly reasons: Readonly<Record<string, number>>;
}

function summaryOf(results: readonly Result[]): Summary {
  const skipped = results.filter(({ outcome, reason }) => outcome === 'skipped' && reason !== '');
  const reasons: Record<string, number> = { held: 0, duplicate: 0 };
  for (const { reason } of skipped) reasons[reason] = (reasons[reason] ?? 0) + 1;
  const succeeded = results.filter(({ outcome }) => outcome === 'succeeded').length;
  return { deliveries: results.length, succeeded, skipped: skipped.length, reasons };
}

function report(
  { job, times }: Wanted,
  slot: Date,
  { driver }: LocalAddress,
  results: readonly Result[],
): string {
  const { deliveries, succeeded, skipped, reasons } = summaryOf(results);
  const counted = Object.entries(reasons).map(([reason, count]) => `${count} ${reason}`);
  return [
    `Slot ${slotName(slot)} of ${job.name}: ${times} deliveries at once, and ${times} more (${driver} driver)`,
    '',
    row('delivery', 'outcome', 'reason', 'ms'),
    ...results.map(({ outcome, reason, ms }, index) =>
      row(String(index + 1), outcome, visible(reason), String(ms)),
    ),
    '',
    `${deliveries} deliveries: ${succeeded} succeeded, ${skipped} skipped (${counted.join(', ')})`,
  ].join('\n');
}

function row(delivery: string, outcome: string, reason: string, ms: string): string {
  return [delivery.padStart(8), outcome.padEnd(9), reason.padEnd(9), ms.padStart(6)].join('  ');
}
