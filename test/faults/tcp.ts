/**
 * The server's own TCP limits are shorter than the lease, and the network swallows the holder's packets: what the server
 * then ends, it must not end before its holder has stopped. In a network namespace of its own, so only as root.
 */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import pg from 'pg';
import { randomFrom } from '../support/random.ts';
import { openGround, type Ground } from './field.ts';
import type { Step } from './orders.ts';
import { brief, count, demandStoppedBeforeFree, demandSuccess, type Row } from './rows.ts';
import { playRow, slackMs, type RowResult } from './trial.ts';

/** Longer than all of the server's limits below. */
const leaseMs = 6_000;
const limits = {
  listen_addresses: '*',
  tcp_keepalives_idle: '1',
  tcp_keepalives_interval: '1',
  tcp_keepalives_count: '1',
  tcp_user_timeout: '1000',
};
const works: readonly [Step[], ...Step[][]] = [
  [{ do: 'vouch', ms: 20_000 }],
  [
    { do: 'statement', ms: 1_500 },
    { do: 'vouch', ms: 20_000 },
  ],
];

/** In a process of its own, which alone is in that namespace. */
export const tcp: Row = async (ground, trials) => {
  const why = await whyNot();
  if (why !== undefined)
    return { row: 'tcp', trials: 0, undone: [], violations: [], times: {}, skipped: why };
  const seed = Math.floor(ground.random() * 2 ** 31);
  const self = fileURLToPath(import.meta.url);
  const words = ['--net', process.execPath, '--import', 'tsx', self, String(trials), String(seed)];
  const child = spawn('unshare', words, { stdio: ['ignore', 'pipe', 'inherit'] });
  const end = () => child.kill('SIGKILL');
  process.once('exit', end);
  let said = '';
  child.stdout.on('data', (chunk: Buffer) => (said += chunk.toString()));
  await once(child, 'close');
  process.off('exit', end);
  const result = said.split('\n').find((line) => line.startsWith('{'));
  if (result === undefined) throw new Error(`the row in a network of its own has said nothing: ${said}`);
  return JSON.parse(result) as RowResult;
};

async function whyNot(): Promise<string | undefined> {
  if (process.getuid?.() !== 0) return 'a network of its own takes root';
  return promisify(execFile)('unshare', ['--net', 'ip', 'link', 'set', 'lo', 'up']).then(
    () => undefined,
    () => 'a network of its own takes unshare, ip, and the right to use them',
  );
}

const inThere: Row = (ground, trials) =>
  playRow(ground, { row: 'tcp', way: 'far', trials, lanes: 4 }, async (trial) => {
    const victim = await trial.begin([count, ...trial.turn(works)], { leaseMs });
    await trial.begun(victim.delivery);
    await delay(trial.between(0, 1_500));
    await victim.road.vanish?.();
    const cutAt = Date.now();
    await demandStoppedBeforeFree(trial, victim, 'unheard', leaseMs + 4 * slackMs, leaseMs);
    trial.time('release', Date.now() - cutAt);
    const next = await trial.next(trial.newSlot(), brief, slackMs);
    await trial.recovered(next, cutAt);
    demandSuccess(trial, await next.ended());
    await victim.delivery.ended();
  });

async function letIn({ server }: Ground): Promise<void> {
  await appendFile(path.join(server.dataDir, 'pg_hba.conf'), '\nhost all all 10.9.9.0/24 password\n');
  const client = new pg.Client({ connectionString: server.url, ssl: false });
  await client.connect();
  await client.query('SELECT pg_reload_conf()');
  await client.end();
}

async function playThere(trials: number, seed: number): Promise<void> {
  await promisify(execFile)('ip', ['link', 'set', 'lo', 'up']);
  const ground = await openGround({ random: randomFrom(seed) }, limits);
  try {
    await letIn(ground);
    console.log(JSON.stringify(await inThere(ground, trials)));
  } finally {
    await ground.close();
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [trials, seed] = process.argv.slice(2).map(Number);
  await playThere(trials ?? 1, seed ?? 0);
  process.exit();
}
