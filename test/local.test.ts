/** `npm start` and `npm run duplicates`, as a user starts them. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterEach, expect, it } from 'vitest';
import { freePort } from '../infra/local/postgres.ts';

const root = fileURLToPath(new URL('..', import.meta.url));

interface Command {
  readonly process: ChildProcess;
  readonly stdout: Promise<string>;
  readonly stderr: Promise<string>;
  /** The exit code, or the signal that ended it. */
  readonly ended: Promise<number | string | null>;
}

const started: Command[] = [];
const folders: string[] = [];
afterEach(async () => {
  for (const { process: child, ended } of started.splice(0)) {
    child.kill('SIGTERM');
    await ended;
  }
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true, force: true });
});

/** Not through npm, which adds nothing but its own start. */
function run(script: string, args: readonly string[]): Command {
  const { DATABASE_URL: _url, ...env } = process.env;
  const child = spawn(process.execPath, ['--import', 'tsx', join('infra', 'local', script), ...args], {
    cwd: root,
    env,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const ended = once(child, 'exit').then(([code, signal]) => (code ?? signal) as number | string | null);
  const command = { process: child, stdout: text(child.stdout), stderr: text(child.stderr), ended };
  started.push(command);
  return command;
}

interface Place {
  readonly folder: string;
  readonly port: number;
  readonly lambdaPort: number;
  readonly flags: readonly string[];
}

async function freePlace(): Promise<Place> {
  const folder = await mkdtemp(join(tmpdir(), 'cronce-local-'));
  folders.push(folder);
  const [port, lambdaPort] = [await freePort(), await freePort()];
  const flags = ['--folder', folder, '--port', String(port), '--lambda-port', String(lambdaPort)];
  return { folder, port, lambdaPort, flags };
}

async function until<T>(look: () => Promise<T | undefined>, ended: Promise<unknown>): Promise<T> {
  const over = new AbortController();
  void ended.then(() => over.abort());
  for (;;) {
    const found = await look().catch(() => undefined);
    if (found !== undefined) return found;
    if (over.signal.aborted) throw new Error('it ended before that');
    await sleep(100);
  }
}

/** Those with a word in their command line. */
async function processesWith(word: string): Promise<string[]> {
  const listing = spawn('ps', ['-eo', 'args'], { stdio: ['ignore', 'pipe', 'ignore'] });
  return (await text(listing.stdout)).split('\n').filter((line) => line.includes(word));
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer().listen(port, '127.0.0.1');
  return once(server, 'listening').then(
    () => (server.close(), true),
    () => false,
  );
}

interface Runs {
  readonly runs: readonly {
    readonly status: string;
    readonly skipReason: string | null;
    readonly trigger: string;
  }[];
}

it('runs jobs that nobody asked for, and leaves nothing behind when it is told to end', async () => {
  const { folder, port, lambdaPort, flags } = await freePlace();
  const start = run('start.ts', flags);
  const url = `http://localhost:${port}`;
  await until(async () => ((await fetch(`${url}/healthz`)).ok ? true : undefined), start.ended);

  const token = await readFile(join(folder, 'token'), 'utf8');
  const runs = await until(async () => {
    const answer = await fetch(`${url}/runs`, { headers: { Authorization: `Bearer ${token}` } });
    const { runs } = (await answer.json()) as Runs;
    return ['succeeded', 'skipped'].every((word) => runs.some(({ status }) => status === word))
      ? runs
      : undefined;
  }, start.ended);
  expect(runs.every(({ trigger }) => trigger === 'rule')).toBe(true);

  expect(await processesWith(folder)).not.toEqual([]);
  await sleep(500); // its own look at the records, for the lines below
  start.process.kill('SIGTERM');
  expect(await start.ended).toBe(0);
  expect(await processesWith(folder)).toEqual([]);
  expect(await processesWith(`--lambdaPort ${lambdaPort}`)).toEqual([]);
  expect([await isFree(port), await isFree(lambdaPort)]).toEqual([true, true]);
  const said = await start.stdout;
  expect(said).toContain(token);
  expect(said).toMatch(/expire-sessions +\d{4}-\d\d-\d\dT[\d:]{8}Z +succeeded +attempt 1\/3 +\d+ ms/);
  expect(said).toMatch(/expire-sessions +\d{4}-\d\d-\d\dT[\d:]{8}Z +skipped (held|duplicate)/);
  expect(await start.stderr).toBe('');
}, 60_000);

it('says in one line that a port is in use, and what to do', async () => {
  const squatter = createServer().listen(0, '127.0.0.1');
  await once(squatter, 'listening');
  const { port } = squatter.address() as AddressInfo;
  const { flags } = await freePlace();
  const start = run('start.ts', [...flags, '--port', String(port)]);
  expect(await start.ended).toBe(1);
  expect(await start.stdout).toBe('');
  expect(await start.stderr).toBe(
    `npm start: ports: port ${port}, wanted for HTTP, is in use: stop what uses it, or choose another with --port\n`,
  );
  squatter.close();
});

it.each(['pg', 'neon'])(
  'runs one of many duplicates, with the %s driver, in a set-up of its own',
  async (driver) => {
    const flags = ['--job', 'expire-sessions', '--times', '5', '--driver', driver, '--json'];
    const duplicates = run('duplicates.ts', flags);
    expect(await duplicates.ended).toBe(0);
    const lines = (await duplicates.stdout).trimEnd().split('\n');
    expect(lines).toHaveLength(1);
    const { reasons, ...counts } = JSON.parse(lines.join()) as {
      reasons: { held: number; duplicate: number };
    };
    expect(counts).toEqual({ deliveries: 10, succeeded: 1, skipped: 9 });
    expect(reasons.held + reasons.duplicate).toBe(9);
  },
  60_000,
);

it.each([
  [['--job', 'nope', '--times', '3'], 'no job is named "nope"; known: '],
  [['--job', 'sweep', '--times', '0'], '--times is "0"; allowed: a whole number from 1 to 100'],
  [['--job', 'sweep', '--times', '1', '--slot', 'noon'], '--slot is "noon"; allowed: '],
])('refuses %j in one line', async (flags, line) => {
  const duplicates = run('duplicates.ts', flags);
  expect(await duplicates.ended).toBe(2);
  expect(await duplicates.stdout).toBe('');
  expect((await duplicates.stderr).trimEnd().split('\n')).toEqual([
    expect.stringContaining(`duplicates: ${line}`),
  ]);
});
