/**
 * A server and a holder in a network namespace of their own, between which packets vanish: `unshare -n` starts this as
 * root. The server's own TCP limits are far shorter than the lease. Prints what was seen as one line of JSON.
 */
import { execFileSync } from 'node:child_process';
import { appendFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { lockKey } from '../../src/lock-name.ts';
import type { Job } from '../../src/job.ts';
import { freshDatabase, type TestDatabase } from './database.ts';
import {
  asError,
  deliver,
  endBackend,
  freeAt,
  insideId,
  job,
  noon,
  one,
  Passes,
  until,
  vouching,
} from './rivals.ts';
import { scratchFolder } from './scratch.ts';
import { startServer } from './server.ts';

const [near, far, farther] = ['127.0.0.1', '10.9.9.1', '10.9.9.2'] as const;
const leaseMs = 6_000;

export interface Seen {
  /** Runs that vouched for one lock at a time. */
  readonly together: readonly string[];
  /** How long after the holder's last vouching the server let go of its lock, ms. */
  readonly leadMs: number;
  /** How long after the cut the lock was free of a holder that had turned its idle limit off, ms. */
  readonly idleOffMs: number;
  readonly idleOffEnd: string;
}

function ip(...words: string[]): void {
  execFileSync('ip', words, { stdio: 'ignore' });
}

/** From now on what is sent to this address vanishes; both ends of a connection to it have it. */
function vanish(address: string): void {
  ip('route', 'replace', 'blackhole', `${address}/32`, 'table', 'local');
}

function by(address: string, url: string): string {
  const way = new URL(url);
  way.hostname = address;
  return way.href;
}

async function cutInTheMiddle(db: TestDatabase): Promise<Pick<Seen, 'together' | 'leadMs'>> {
  const passes = new Passes();
  const task = job(vouching(passes), { leaseMs });
  void deliver(by(far, db.url), task, noon, { delivery: { params: 'stay' } }).catch(asError);
  await until(() => passes.of(`${noon}/1`).length > 3);
  vanish(far);
  const free = await freeAt(db, lockKey(task.name));
  await deliver(db.url, task, one);
  return { together: passes.together(), leadMs: free - passes.last(`${noon}/1`) };
}

async function cutWithIdleLimitOff(db: TestDatabase): Promise<Pick<Seen, 'idleOffMs' | 'idleOffEnd'>> {
  let off = false;
  const task: Job = job(
    async ({ tx, signal }) => {
      await tx.query('SET LOCAL idle_in_transaction_session_timeout = 0');
      off = true;
      await delay(60_000, undefined, { signal });
    },
    { leaseMs },
  );
  void deliver(by(farther, db.url), task, noon).catch(asError);
  await until(() => off);
  vanish(farther);
  const since = Date.now();
  const id = await insideId(db, task);
  const free = await Promise.race([freeAt(db, lockKey(task.name)), delay(24_000, NaN)]);
  await endBackend(db, id);
  return { idleOffMs: free - since, idleOffEnd: Number.isNaN(free) ? 'never' : 'by TCP' };
}

ip('link', 'set', 'lo', 'up');
for (const address of [far, farther]) ip('addr', 'add', `${address}/32`, 'dev', 'lo');
const folder = await scratchFolder();
const limits = {
  tcp_keepalives_idle: '1',
  tcp_keepalives_interval: '1',
  tcp_keepalives_count: '1',
  tcp_user_timeout: '1000',
};
const settings = { ...limits, listen_addresses: [near, far, farther].join(',') };
const server = await startServer({ dataDir: join(folder.path, 'server'), settings });
await appendFile(join(server.dataDir, 'pg_hba.conf'), '\nhost all all 10.9.9.0/24 scram-sha-256\n');
const db = await freshDatabase({ serverUrl: server.url });
await db.query('SELECT pg_reload_conf()');
const [cut, idleOff] = await Promise.all([cutInTheMiddle(db), cutWithIdleLimitOff(db)]);
console.log(JSON.stringify({ ...cut, ...idleOff } satisfies Seen));
await server.kill();
await folder.remove();
process.exit(0);
