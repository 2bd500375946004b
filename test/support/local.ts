/** `npm start` and the like, as a user starts them: processes of their own, in this checkout or a copy of it. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { cp, mkdtemp, rm, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort } from '../../infra/local/postgres.ts';
import { root } from './checkout.ts';

export { root };

export const osls = createRequire(import.meta.url).resolve('serverless/bin/serverless.js');
export const cli = ['--import', 'tsx', join('infra', 'cli', 'cronce.ts')];

export interface Running {
  readonly process: ChildProcess;
  readonly stdout: Promise<string>;
  readonly stderr: Promise<string>;
  /** What it has said so far. */
  readonly said: () => string;
  /** The exit code, or the signal that ended it. */
  readonly ended: Promise<number | string | null>;
}

export interface Way {
  readonly cwd?: string;
  readonly env?: NodeJS.ProcessEnv;
}

const started: Running[] = [];
const folders: string[] = [];

/** Not through npm, which adds nothing but its own start. */
export function run(args: readonly string[], { cwd = root, env = {} }: Way = {}): Running {
  const { DATABASE_URL: _url, ...rest } = process.env;
  const child = spawn(process.execPath, args, {
    cwd,
    env: { ...rest, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const ended = once(child, 'close').then(([code, signal]) => (code ?? signal) as number | string | null);
  const [stdout, stderr] = [heard(child.stdout), heard(child.stderr)];
  const all = async (of: () => string) => ended.then(of);
  const running = { process: child, stdout: all(stdout), stderr: all(stderr), said: stdout, ended };
  started.push(running);
  return running;
}

function heard(stream: NodeJS.ReadableStream): () => string {
  let text = '';
  stream.setEncoding('utf8').on('data', (more) => (text += String(more)));
  return () => text;
}

/** Ends what was run and removes what was made. */
export async function cleanUp(): Promise<void> {
  for (const { process: child, ended } of started.splice(0)) {
    child.kill('SIGTERM');
    await ended;
  }
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true, force: true });
}

export interface Place {
  readonly folder: string;
  readonly port: number;
  readonly lambdaPort: number;
  readonly url: string;
  readonly flags: readonly string[];
}

export async function freePlace(): Promise<Place> {
  const folder = await mkdtemp(join(tmpdir(), 'cronce-local-'));
  folders.push(folder);
  const [port, lambdaPort] = [await freePort(), await freePort()];
  const flags = ['--folder', folder, '--port', String(port), '--lambda-port', String(lambdaPort)];
  return { folder, port, lambdaPort, url: `http://localhost:${port}`, flags };
}

/** What a fresh clone has, after `npm ci`. */
export async function checkout(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'cronce-checkout-'));
  const parts = ['src', 'infra', 'functions', 'package.json', 'tsconfig.json', 'serverless.yml', 'README.md'];
  for (const part of parts) await cp(join(root, part), join(folder, part), { recursive: true });
  await symlink(join(root, 'node_modules'), join(folder, 'node_modules'));
  return folder;
}

/** Looks until something is found; fails as soon as what it waits for has ended. */
export async function until<T>(look: () => Promise<T | undefined>, ended: Promise<unknown>): Promise<T> {
  const over = new AbortController();
  void ended.then(() => over.abort());
  for (;;) {
    const found = await look().catch(() => undefined);
    if (found !== undefined) return found;
    if (over.signal.aborted) throw new Error('it ended before that');
    await sleep(100);
  }
}

export async function untilUp({ url }: Place, { ended }: Running): Promise<void> {
  await until(async () => ((await fetch(`${url}/healthz`)).ok ? true : undefined), ended);
}
