/** `npm start`: the whole coordinator on this machine, until Ctrl-C. */
import { once } from 'node:events';
import { join, relative } from 'node:path';
import { parseArgs } from 'node:util';

import type { RunRecord } from '../../src/run.ts';
import { deployedJobs } from '../jobs.ts';
import { startClock } from './clock.ts';
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

const usage = 'npm start -- [--port 3000] [--lambda-port 3002] [--folder .cronce]';

async function main(): Promise<void> {
  const stopping = untilSignalled();
  const options = optionsFrom(process.argv.slice(2), process.env);
  const local = await startLocal({ ...options, signal: stopping });
  try {
    greet(local, options.folder);
    await runUntil([stopping, local.ended], local);
  } finally {
    await local.stop();
  }
  if (!stopping.aborted)
    throw new LocalError(
      `serverless-offline ended by itself: see ${join(options.folder, 'offline.log')}, and start again`,
    );
}

function optionsFrom(args: readonly string[], environment: NodeJS.ProcessEnv): LocalOptions {
  const { port, 'lambda-port': lambdaPort, folder } = flagsOf(args);
  return {
    httpPort: portFrom('--port', port ?? (environment['PORT'] || '3000')),
    lambdaPort: portFrom('--lambda-port', lambdaPort ?? (environment['LAMBDA_PORT'] || '3002')),
    folder: folder ?? localFolder,
    environment,
  };
}

function flagsOf(args: readonly string[]) {
  const text = { type: 'string' } as const;
  try {
    return parseArgs({ args: [...args], options: { port: text, 'lambda-port': text, folder: text } }).values;
  } catch (cause) {
    throw new LocalError(`${cause instanceof Error ? cause.message : String(cause)}; usage: ${usage}`, {
      cause,
    });
  }
}

function portFrom(flag: string, given: string): number {
  const port = /^\d{1,5}$/.test(given) ? Number(given) : NaN;
  if (port >= 1 && port <= 65_535) return port;
  throw new LocalError(`${flag} is ${JSON.stringify(given)}; allowed: a port from 1 to 65535`);
}

function greet({ url, lambdaPort, tokens, driver }: Local, folder: string): void {
  console.log(`Cronce runs, with the ${driver} driver. Ctrl-C stops it; its data stays in ${relative('', folder)}/

  page, API    ${url}
  Lambda API   http://localhost:${lambdaPort}
  token        ${tokens.run}  (for reading alone: ${tokens.read})

  curl -H 'Authorization: Bearer ${tokens.run}' ${url}/runs
  curl -H 'Authorization: Bearer ${tokens.run}' -X POST ${url}/jobs/${firstJob()}/runs
`);
}

function firstJob(): string {
  return deployedJobs[0]?.name ?? 'my-job';
}

async function runUntil(over: readonly AbortSignal[], local: Local): Promise<void> {
  const ended = new AbortController();
  const shown = show(outcomes(local.databaseUrl, ended.signal));
  const clock = startClock({
    jobs: deployedJobs,
    deliver: async (job, event, signal) => !(await deliver(local, job, event, { signal })).failed,
    onTrouble: (job, error) =>
      console.log(`${job} could not be delivered: ${error instanceof Error ? error.message : String(error)}`),
  });
  await aborted(over);
  await clock.stop();
  ended.abort();
  await shown;
}

async function show(runs: AsyncIterable<RunRecord>): Promise<void> {
  const colour = process.stdout.isTTY && !process.env['NO_COLOR'];
  const jobWidth = Math.max(...deployedJobs.map(({ name }) => name.length));
  for await (const run of runs) console.log(outcomeLine(run, { colour, jobWidth }));
}

async function aborted(signals: readonly AbortSignal[]): Promise<void> {
  if (signals.some((signal) => signal.aborted)) return;
  await Promise.race(signals.map(async (signal) => once(signal, 'abort')));
}

main().catch((error: unknown) => {
  if (error instanceof Error && error.name === 'AbortError') return;
  console.error(`npm start: ${error instanceof LocalError ? error.message : String(error)}`);
  process.exitCode = 1;
});
