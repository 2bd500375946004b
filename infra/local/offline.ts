/** serverless-offline as a process of its own, with the handlers in .build/. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { request, type IncomingMessage } from 'node:http';
import { createRequire } from 'node:module';
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';

const readyWithinMs = 45_000;
const stopWithinMs = 4_000;
const pollMs = 50;

export interface OfflineOptions {
  /** Of the project. */
  readonly root: string;
  readonly httpPort: number;
  readonly lambdaPort: number;
  readonly stage: string;
  /** All it says goes here. */
  readonly logFile: string;
  /** What serverless.yml passes on to the functions is taken from this. */
  readonly environment: NodeJS.ProcessEnv;
  /** The times before retries are divided by this. */
  readonly speed: number;
  /** Gives up waiting for it. */
  readonly signal?: AbortSignal | undefined;
}

export interface Offline {
  /** Aborts when it has ended, by itself or by `stop`. */
  readonly ended: AbortSignal;
  stop(): Promise<void>;
}

/** Its message is one line that says what is wrong and what to do. */
export class OfflineError extends Error {
  override readonly name = 'OfflineError';
}

/** @throws {OfflineError} unless it listens on both ports in the end */
export async function startOffline(options: OfflineOptions): Promise<Offline> {
  const child = await launch(options);
  const over = new AbortController();
  child.once('exit', () => over.abort());
  child.once('error', () => over.abort());
  const offline = { ended: over.signal, stop: async () => end(child, over.signal) };
  try {
    const giveUp = () => over.signal.aborted || options.signal?.aborted === true;
    await untilListening([options.httpPort, options.lambdaPort], giveUp);
    return offline;
  } catch (cause) {
    await offline.stop();
    options.signal?.throwIfAborted();
    const said = await lastWords(options.logFile);
    throw new OfflineError(`serverless-offline did not start${said}; see ${options.logFile}`, { cause });
  }
}

async function launch({
  root,
  httpPort,
  lambdaPort,
  stage,
  logFile,
  environment,
  speed,
}: OfflineOptions): Promise<ChildProcess> {
  const osls = createRequire(import.meta.url).resolve('serverless/bin/serverless.js');
  const ports = ['--httpPort', String(httpPort), '--lambdaPort', String(lambdaPort)];
  const log = createWriteStream(logFile, { flags: 'w', mode: 0o600 });
  await once(log, 'open');
  const child = spawn(
    process.execPath,
    [osls, 'offline', 'start', '--stage', stage, '--host', '127.0.0.1', ...ports],
    // A session of its own: Ctrl-C in the terminal reaches us alone, and we keep the order of stopping.
    // By the channel it notices our end, however that comes (see stand-in.ts).
    {
      cwd: root,
      env: { ...environment, EMULATOR_SPEED: String(speed) },
      detached: true,
      stdio: ['ignore', log, log, 'ipc'],
    },
  );
  log.close();
  return child;
}

async function untilListening(ports: readonly number[], giveUp: () => boolean): Promise<void> {
  const deadline = performance.now() + readyWithinMs;
  while (!giveUp() && performance.now() < deadline) {
    const open = await Promise.all(ports.map(async (port) => isListening(port)));
    if (open.every(Boolean)) return;
    await sleep(pollMs);
  }
  throw new Error('not listening');
}

export async function isListening(port: number, host = '127.0.0.1'): Promise<boolean> {
  const socket = connect({ port, host });
  return once(socket, 'connect')
    .then(
      () => true,
      () => false,
    )
    .finally(() => socket.destroy());
}

async function lastWords(logFile: string): Promise<string> {
  const lines = (await readFile(logFile, 'utf8').catch(() => '')).split('\n');
  const told = lines[lines.findIndex((line) => /^Error:/.test(line)) + 1]?.trim() ?? '';
  return told === '' ? '' : ` (${told.slice(0, 300)})`;
}

/** Its whole process group: at first politely, so that it closes its ports and ends its workers. */
async function end(child: ChildProcess, ended: AbortSignal): Promise<void> {
  for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
    if (ended.aborted) return;
    killGroup(child, signal);
    await sleep(stopWithinMs, undefined, { signal: ended }).catch(() => undefined);
  }
}

function killGroup({ pid }: ChildProcess, signal: NodeJS.Signals): void {
  try {
    if (pid !== undefined) process.kill(-pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

// --- Lambda API ---------------------------------------------------------------------------------

export type InvocationType = 'Event' | 'RequestResponse';

export interface Answer {
  /** The handler threw, timed out, or its sandbox ended. */
  readonly failed: boolean;
  /** What the handler returned, or `{errorMessage}`. Null for an invocation of type Event. */
  readonly payload: unknown;
}

/**
 * Invokes a function as Lambda's clients do. Not by fetch, which gives up after five minutes without an answer: runs
 * may take longer.
 * @throws {OfflineError} where there is no such function, or nobody answers
 */
export async function invoke(
  lambdaPort: number,
  functionName: string,
  event: unknown,
  type: InvocationType = 'RequestResponse',
  signal?: AbortSignal,
): Promise<Answer> {
  const call = request({
    host: '127.0.0.1',
    port: lambdaPort,
    path: `/2015-03-31/functions/${encodeURIComponent(functionName)}/invocations`,
    method: 'POST',
    headers: { 'X-Amz-Invocation-Type': type, 'Content-Type': 'application/json' },
    agent: false,
    ...(signal && { signal }),
  });
  call.end(JSON.stringify(event));
  try {
    const [response] = (await once(call, 'response')) as [IncomingMessage];
    return await answerFrom(response, functionName);
  } catch (cause) {
    if (cause instanceof OfflineError) throw cause;
    const what = cause instanceof Error ? cause.message : String(cause);
    throw new OfflineError(`the Lambda API on port ${lambdaPort} does not answer (${what})`, { cause });
  }
}

async function answerFrom(response: IncomingMessage, functionName: string): Promise<Answer> {
  if (response.statusCode === 404) {
    response.resume();
    throw new OfflineError(
      `the Lambda API knows no function ${functionName}: is another service running there?`,
    );
  }
  const failed = response.headers['x-amz-function-error'] !== undefined;
  const body = await text(response);
  return { failed, payload: body === '' ? null : (JSON.parse(body) as unknown) };
}
