/** `npm start`: the whole coordinator on this machine, until Ctrl-C. */
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { join, relative } from 'node:path';
import { parseArgs } from 'node:util';

import type { RunRecord } from '../../src/run.ts';
import { slotName } from '../../src/trigger.ts';
import { deployedJobs } from '../jobs.ts';
import { chaos, fateInWords } from './chaos.ts';
import { startClock, type Fate } from './clock.ts';
import { outcomeLine, outcomes } from './outcomes.ts';
import {
  deliver,
  LocalError,
  localFolder,
  startLocal,
  untilSignalled,
  type Local,
  type LocalOptions,
} from './setup.ts';

const usage =
  'npm start -- [--port 3000] [--lambda-port 3002] [--folder .cronce] [--speed 1] [--chaos [--seed N]]';
const largestSeed = 2 ** 32 - 1;
const jobWidth = Math.max(...deployedJobs.map(({ name }) => name.length));

/** Settled before anything is started; its message is one line. */
class UsageError extends Error {
  override readonly name = 'UsageError';
}

interface Wanted {
  readonly place: LocalOptions;
  readonly speed: number;
  /** Undefined without --chaos. */
  readonly seed: number | undefined;
}

async function main(): Promise<void> {
  const wanted = wantedBy(process.argv.slice(2), process.env);
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
}

// --- what is wanted -----------------------------------------------------------------------------

function wantedBy(args: readonly string[], environment: NodeJS.ProcessEnv): Wanted {
  const { port, 'lambda-port': lambdaPort, folder = localFolder, speed, chaos = false, seed } = flagsOf(args);
  if (seed !== undefined && !chaos) throw new UsageError('--seed means nothing without --chaos; give both');
  const httpPort = wholeFrom('--port', port ?? (environment['PORT'] || '3000'), 1, 65_535);
  const lambda = lambdaPort ?? (environment['LAMBDA_PORT'] || '3002');
  const place = { httpPort, lambdaPort: wholeFrom('--lambda-port', lambda, 1, 65_535), folder, environment };
  const seeded = seed === undefined ? randomInt(largestSeed) : wholeFrom('--seed', seed, 0, largestSeed);
  return { place, speed: wholeFrom('--speed', speed ?? '1', 1, 3_600), seed: chaos ? seeded : undefined };
}

function flagsOf(args: readonly string[]) {
  const text = { type: 'string' } as const;
  const places = { port: text, 'lambda-port': text, folder: text };
  const options = { ...places, speed: text, chaos: { type: 'boolean' }, seed: text } as const;
  try {
    return parseArgs({ args: [...args], options }).values;
  } catch (cause) {
    const said = cause instanceof Error ? cause.message : String(cause);
    throw new UsageError(`${said.split('\n', 1).join().replace(/\.$/, '')}; usage: ${usage}`, { cause });
  }
}

function wholeFrom(flag: string, given: string, least: number, most: number): number {
  const number = /^\d{1,10}$/.test(given) ? Number(given) : NaN;
  if (number >= least && number <= most) return number;
  throw new UsageError(
    `${flag} is ${JSON.stringify(given)}; allowed: a whole number from ${least} to ${most}`,
  );
}

// --- what is shown ------------------------------------------------------------------------------

function greet({ url, lambdaPort, tokens, driver }: Local, { place, seed, speed }: Wanted): void {
  console.log(`Cronce runs, with the ${driver} driver. Ctrl-C stops it; its data stays in ${relative('', place.folder)}/

  page, API    ${url}
  Lambda API   http://localhost:${lambdaPort}
  token        ${tokens.run}  (for reading alone: ${tokens.read})

  curl -H 'Authorization: Bearer ${tokens.run}' ${url}/runs
  curl -H 'Authorization: Bearer ${tokens.run}' -X POST ${url}/jobs/${firstJob()}/runs
`);
  if (seed !== undefined)
    console.log(`Chaos, repeated by --chaos --seed ${seed}${speed === 1 ? '' : ` --speed ${speed}`}: events come late, twice, out of order or never.
A lost one is recorded as missed by the sweep, five to ten minutes later.
`);
}

function firstJob(): string {
  return deployedJobs[0]?.name ?? 'my-job';
}

/** Without chaos, the clock's own choice. */
function fateFrom({ seed, speed }: Wanted): { readonly fate?: Fate } {
  if (seed === undefined) return {};
  const decide = chaos({ seed, speed });
  const fate: Fate = (due) => {
    const delaysMs = decide(due);
    const said = fateInWords(delaysMs, due.untilNextMs);
    if (said !== undefined) tell(due.job.name, slotName(due.slot).padEnd(20), `chaos: ${said}`);
    return delaysMs;
  };
  return { fate };
}

function tell(job: string, ...columns: readonly string[]): void {
  console.log([new Date().toISOString().slice(11, 19), job.padEnd(jobWidth), ...columns].join('  '));
}

function tellOfSleep(sleptMs: number, events: number): void {
  console.log(`This machine slept for ${Math.round(sleptMs / 1_000)} s. ${events} events fell due meanwhile and are delivered now, each schedule's
in order: those of the last 24 hours, and at most 500 of each. The sweep records as missed what is older.`);
}

// --- until it is stopped ------------------------------------------------------------------------

async function runUntil(over: readonly AbortSignal[], local: Local, wanted: Wanted): Promise<void> {
  const ended = new AbortController();
  const shown = show(outcomes(local.databaseUrl, ended.signal));
  const clock = startClock({
    jobs: deployedJobs,
    deliver: async (job, event, signal) => !(await deliver(local, job, event, { signal })).failed,
    onTrouble: (job, error) =>
      tell(job, `could not be delivered: ${error instanceof Error ? error.message : String(error)}`),
    onCatchUp: tellOfSleep,
    speed: wanted.speed,
    ...fateFrom(wanted),
  });
  await aborted(over);
  await clock.stop();
  ended.abort();
  await shown;
}

async function show(runs: AsyncIterable<RunRecord>): Promise<void> {
  const colour = process.stdout.isTTY && !process.env['NO_COLOR'];
  for await (const run of runs) console.log(outcomeLine(run, { colour, jobWidth }));
}

async function aborted(signals: readonly AbortSignal[]): Promise<void> {
  if (signals.some((signal) => signal.aborted)) return;
  await Promise.race(signals.map(async (signal) => once(signal, 'abort')));
}

main().catch((error: unknown) => {
  if (error instanceof Error && error.name === 'AbortError') return;
  const isPlain = error instanceof LocalError || error instanceof UsageError;
  console.error(`npm start: ${isPlain ? error.message : String(error)}`);
  process.exitCode = error instanceof UsageError ? 2 : 1;
});
