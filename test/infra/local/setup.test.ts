/** `npm start` and `npm run duplicates`, as a user starts them. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, expect, it } from 'vitest';
import { cleanUp, freePlace, cli, run as runNode, until } from '../../support/local.ts';

afterEach(cleanUp);

function run(command: 'dev' | 'duplicates', args: readonly string[]) {
  return runNode([...cli, command, ...args]);
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
  const start = run('dev', flags);
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
}, 240_000);

it('says in one line that a port is in use, and what to do', { timeout: 60_000 }, async () => {
  const squatter = createServer().listen(0, '127.0.0.1');
  await once(squatter, 'listening');
  const { port } = squatter.address() as AddressInfo;
  const { flags } = await freePlace();
  const start = run('dev', [...flags, '--port', String(port)]);
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
    const duplicates = run('duplicates', flags);
    expect(await duplicates.ended).toBe(0);
    const lines = (await duplicates.stdout).trimEnd().split('\n');
    expect(lines).toHaveLength(1);
    const { reasons, ...counts } = JSON.parse(lines.join()) as {
      reasons: { held: number; duplicate: number };
    };
    expect(counts).toEqual({ deliveries: 10, succeeded: 1, skipped: 9 });
    expect(reasons.held + reasons.duplicate).toBe(9);
  },
  240_000,
);

it.each([
  [['--job', 'nope', '--times', '3'], 'no job is named "nope"; known: '],
  [['--job', 'sweep', '--times', '0'], '--times is "0"; allowed: a whole number from 1 to 100'],
  [['--job', 'sweep', '--times', '1', '--slot', 'noon'], '--slot is "noon"; allowed: '],
])('refuses %j in one line', { timeout: 60_000 }, async (flags, line) => {
  const duplicates = run('duplicates', flags);
  expect(await duplicates.ended).toBe(2);
  expect(await duplicates.stdout).toBe('');
  expect((await duplicates.stderr).trimEnd().split('\n')).toEqual([
    expect.stringContaining(`duplicates: ${line}`),
  ]);
});
