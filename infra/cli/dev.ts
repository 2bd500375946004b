/** `npm start`, or `npx cronce dev`: the whole coordinator on this machine, until Ctrl-C. */
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { join, relative } from 'node:path';
import type { RunRecord } from '../../src/run.ts';
import { sweepName } from '../../src/sweep/sweep.ts';
import { slotName } from '../../src/path/trigger.ts';
import { chaos, fateInWords } from '../local/chaos.ts';
import { startClock, type Fate } from '../local/clock.ts';
import { settleYoungLeftovers } from '../local/leftovers.ts';
import { outcomeLine, outcomes } from '../local/outcomes.ts';
import {
  deliver,
  LocalError,
  localFolderOf,
  startLocal,
  untilSignalled,
  type Local,
  type LocalOptions,
} from '../local/setup.ts';
import { openProject, type Project } from '../project.ts';
import { visible } from '../terminal.ts';
import { asTyped, beforeOptions, readFlags, UsageError, wholeFrom, type Given } from './flags.ts';

const name = asTyped('npm start', 'npx cronce dev');
const command = {
  name,
  says: 'the whole coordinator on this machine, until Ctrl-C',
  flags: {
    port: { value: 'N', says: 'of the page and the API; default PORT, or 3000' },
    'lambda-port': { value: 'N', says: 'of the Lambda API; default LAMBDA_PORT, or 3002' },
    folder: { value: 'PATH', says: 'keeps database, tokens and logs; default .cronce' },
    examples: { says: 'makes the example jobs’ tables in your own DATABASE_URL, and runs these jobs' },
    speed: { value: 'N', says: 'divides the times before retries, and the delays of --chaos; 1 to 3600' },
    chaos: { says: 'delivers events late, twice, out of order or never' },
    seed: { value: 'N', says: 'repeats a --chaos' },
  },
} as const;
const largestSeed = 2 ** 32 - 1;

interface Wanted {
  readonly place: LocalOptions;
  readonly speed: number;
  /** Undefined without --chaos. */
  readonly seed: number | undefined;
}

export async function dev(args: readonly string[]): Promise<number> {
  const flags = readFlags(command, args);
  const wanted = wantedBy(flags, await openProject(process.cwd()), process.env);
  const stopping = untilSignalled();
  const local = await startLocal({ ...wanted.place, signal: stopping });
  try {
    greet(local, wanted);
    await runUntil([stopping, local.ended], local, wanted);
  } finally {
    await local.stop();
  }
  if (!stopping.aborted)
    throw new LocalError(
      `serverless-offline ended by itself: see ${join(wanted.place.folder, 'offline.log')}, and start again`,
    );
  return 0;
}

// --- what is wanted -----------------------------------------------------------------------------

function wantedBy(
  { folder: kept, speed: given = '1', chaos = false, seed, ...flags }: Given<typeof command>,
  project: Project,
  environment: NodeJS.ProcessEnv,
): Wanted {
  const folder = kept ?? localFolderOf(project.root);
  if (seed !== undefined && !chaos) throw new UsageError('--seed means nothing without --chaos; give both');
  const speed = wholeFrom('--speed', given, 1, 3_600);
  const examples = flags.examples === true ? { examples: true } : {};
  const place = { ...portsFrom(flags, environment), project, folder, environment, speed, ...examples };
  const seeded = seed === undefined ? randomInt(largestSeed) : wholeFrom('--seed', seed, 0, largestSeed);
  return { place, speed, seed: chaos ? seeded : undefined };
}

function portsFrom(
  given: { readonly port?: string; readonly 'lambda-port'?: string },
  environment: NodeJS.ProcessEnv,
): Pick<LocalOptions, 'httpPort' | 'lambdaPort'> {
  const httpPort = wholeFrom('--port', given.port ?? (environment['PORT'] || '3000'), 1, 65_535);
  const lambda = given['lambda-port'] ?? (environment['LAMBDA_PORT'] || '3002');
  const lambdaPort = wholeFrom('--lambda-port', lambda, 1, 65_535);
  if (httpPort === lambdaPort)
    throw new UsageError(`--port and --lambda-port are both ${httpPort}; they need a port each`);
  return { httpPort, lambdaPort };
}

// --- what is shown ------------------------------------------------------------------------------

function greet(local: Local, { place, seed, speed }: Wanted): void {
  const { url, lambdaPort, tokens, driver } = local;
  console.log(`Cronce runs, with the ${driver} driver. Ctrl-C stops it; its data stays in ${visible(relative('', place.folder))}/

  page, API    ${url}
  Lambda API   http://localhost:${lambdaPort}
  token        ${tokens.run}  (for reading alone: ${tokens.read})

  curl -H 'Authorization: Bearer ${tokens.run}' ${url}/runs
  curl -H 'Authorization: Bearer ${tokens.run}' -X POST ${url}/jobs/${firstJob(local)}/runs
`);
  for (const line of [...databaseLines(local), ...jobsLines(local)]) console.log(`${line}\n`);
  if (seed !== undefined)
    console.log(`Chaos, repeated by --chaos --seed ${seed}${speed === 1 ? '' : ` --speed ${speed}`}: events come late, twice, out of order or never.
A lost one is recorded as missed by the sweep, five to ten minutes later.
`);
}

/** What was done to a database that is not ours. */
function databaseLines({ database: { isOurs, examples, applied, leftOut } }: Local): string[] {
  if (isOurs) return [];
  const where = examples ? 'the schemas cronce and app are' : 'only the schema cronce is';
  const done = applied.length === 0 ? 'up to date already' : `applied ${applied.join(', ')}`;
  const lines = [`In your database (DATABASE_URL) ${where} touched: ${done}.`];
  if (leftOut.length > 0)
    lines.push(`The example jobs (${leftOut.join(', ')}) are left out: they need tables of their own.
${beforeOptions(name)} --examples makes these in your database, in the schema app with sample rows, and runs them.`);
  return lines;
}

function jobsLines({ jobs }: Local): string[] {
  if (jobs.some(({ name }) => name !== sweepName)) return [];
  return [
    'There is no job yet. Put one in functions/jobs/, name it in functions/jobs/index.ts, and start again.',
  ];
}

function firstJob({ jobs }: Local): string {
  return jobs.find(({ name }) => name !== sweepName)?.name ?? 'my-job';
}

function tellOfLeftovers(local: Local): void {
  const { length } = local.leftovers;
  if (length === 0) return;
  console.log(`${length === 1 ? 'A run was' : `${length} runs were`} cut off when this was last ended:`);
  for (const run of local.leftovers) showRun(run, local);
  console.log('');
}

/** Without chaos, the clock's own choice. */
function fateFrom({ seed, speed }: Wanted, jobWidth: number): { readonly fate?: Fate } {
  if (seed === undefined) return {};
  const decide = chaos({ seed, speed });
  const fate: Fate = (due) => {
    const delaysMs = decide(due);
    const said = fateInWords(delaysMs, due.untilNextMs);
    if (said !== undefined)
      tell(due.job.name.padEnd(jobWidth), slotName(due.slot).padEnd(20), `chaos: ${said}`);
    return delaysMs;
  };
  return { fate };
}

function tell(...columns: readonly string[]): void {
  console.log([new Date().toISOString().slice(11, 19), ...columns.map(visible)].join('  '));
}

function tellOfSleep(sleptMs: number, events: number): void {
  console.log(`This machine slept for ${Math.round(sleptMs / 1_000)} s. ${events} events fell due meanwhile and are delivered now, each schedule's
in order: those of the last 24 hours, and at most 500 of each. The sweep records as missed what is older.`);
}

// --- until it is stopped ------------------------------------------------------------------------

async function runUntil(over: readonly AbortSignal[], local: Local, wanted: Wanted): Promise<void> {
  const ended = new AbortController();
  tellOfLeftovers(local);
  const { databaseUrl, deployment, database } = local;
  const shown = show(outcomes(local.databaseUrl, ended.signal), local);
  const settled = settleYoungLeftovers({ databaseUrl, deployment, isOurs: database.isOurs }, ended.signal);
  const clock = startClock({
    jobs: local.jobs,
    deliver: async (job, event, signal) => !(await deliver(local, job, event, { signal })).failed,
    onTrouble: (job, error) =>
      tell(job, `could not be delivered: ${error instanceof Error ? error.message : String(error)}`),
    onCatchUp: tellOfSleep,
    speed: wanted.speed,
    ...fateFrom(wanted, jobWidthOf(local)),
  });
  await aborted(over);
  await clock.stop();
  ended.abort();
  await Promise.all([shown, settled]);
}

async function show(runs: AsyncIterable<RunRecord>, local: Local): Promise<void> {
  for await (const run of runs) showRun(run, local);
}

function showRun(run: RunRecord, local: Local): void {
  const colour = process.stdout.isTTY && !process.env['NO_COLOR'];
  console.log(outcomeLine(run, { colour, jobWidth: jobWidthOf(local) }));
}

function jobWidthOf({ jobs }: Local): number {
  return Math.max(...jobs.map(({ name }) => name.length));
}

async function aborted(signals: readonly AbortSignal[]): Promise<void> {
  if (signals.some((signal) => signal.aborted)) return;
  await Promise.race(signals.map(async (signal) => once(signal, 'abort')));
}
