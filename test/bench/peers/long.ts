/**
 * What a minute of work costs the database while it waits: whether it holds vacuum back, what it writes to the log, what CPU
 * its sessions take. All that do it on PostgreSQL at once, each in a database of its own, beside a stream of transactions.
 */
import { readFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import type { Long, Longs, Orders } from '../peers.ts';
import { all } from './all.ts';
import { addressesOf, peeredOf, startAll, type Standing } from './field.ts';

const workMs = 60_000;
const job = 'long';
/** Until what begins with the work has settled. */
const settleMs = 2_000;
const sampleEveryMs = 1_000;
const transactionEveryMs = 20;

export async function long(orders: Orders): Promise<Longs> {
  const peers = all.filter(({ name, on }) => on === 'PostgreSQL' && name !== 'Cronce, lockDelayMs 0');
  const root = new pg.Client({ connectionString: orders.superuserUrl });
  await root.connect();
  const before = new Set((await sessionsOf(root)).map(({ pid }) => pid));
  const work = async () => delay<undefined>(workMs);
  const standing = await startAll(orders, orders.ports[0], peers, [job], () => work);
  const ticking = tick(orders.superuserUrl);
  const works = standing.map(async ({ started }) => started.deliver(job, `${process.pid}`));
  await delay(settleMs);
  const watches = new Map(standing.map((one) => [databaseOf(one, orders), new Watch()]));
  const end = performance.now() + workMs - 2 * settleMs;
  while (performance.now() < end) {
    for (const session of await sessionsOf(root))
      if (!before.has(session.pid)) await watches.get(session.database)?.see(session);
    await delay(sampleEveryMs);
  }
  if (!(await Promise.all(works)).every(Boolean)) throw new Error('long work was turned away');
  await ticking.stop();
  await root.end();
  for (const { started } of standing) await started.stop();
  const found = standing.map((one) => ({
    peer: one.peer.name,
    ...(watches.get(databaseOf(one, orders)) ?? new Watch()).told(),
  }));
  return { peers: peeredOf(orders, peers), seconds: (workMs - 2 * settleMs) / 1_000, found };
}

function databaseOf({ peer }: Standing, orders: Orders): string {
  return new URL(addressesOf(peer, orders, orders.ports[0]).postgres).pathname.slice(1);
}

interface Session {
  readonly pid: number;
  readonly database: string;
  readonly inTransaction: boolean;
  /** How many transactions old what it keeps vacuum from is; null if it keeps nothing. */
  readonly xminAge: number | null;
  readonly walBytes: number;
}

async function sessionsOf(root: pg.Client): Promise<readonly Session[]> {
  const { rows } = await root.query<Session>(
    `SELECT pid, datname AS database, xact_start IS NOT NULL AS "inTransaction",
            greatest(age(backend_xmin), age(backend_xid)) AS "xminAge",
            (pg_stat_get_backend_wal(pid)).wal_bytes::float8 AS "walBytes"
       FROM pg_stat_activity
      WHERE backend_type = 'client backend' AND datname IS NOT NULL`,
  );
  return rows;
}

/** Nanoseconds on a processor, as Linux counts them; 0 for one that has gone. */
async function cpuNsOf(pid: number): Promise<number> {
  const text = await readFile(`/proc/${pid}/schedstat`, 'utf8').catch(() => '0');
  return Number(text.split(' ')[0]);
}

interface Count {
  readonly first: number;
  readonly last: number;
}

/** The sessions of one database. */
class Watch {
  readonly #cpu = new Map<number, Count>();
  readonly #wal = new Map<number, Count>();
  #most = 0;
  #inTransaction = 0;
  #xminAge = 0;
  #looks = 0;
  #now = new Set<number>();

  async see({ pid, inTransaction, xminAge, walBytes }: Session): Promise<void> {
    if (this.#now.has(pid)) this.#now.clear(); // the next look
    if (this.#now.size === 0) this.#looks += 1;
    this.#now.add(pid);
    this.#most = Math.max(this.#most, this.#now.size);
    if (inTransaction) this.#inTransaction += 1;
    this.#xminAge = Math.max(this.#xminAge, xminAge ?? 0);
    count(this.#wal, pid, walBytes, this.#looks);
    count(this.#cpu, pid, await cpuNsOf(pid), this.#looks);
  }

  told(): Omit<Long, 'peer'> {
    return {
      sessions: this.#most,
      inTransaction: this.#inTransaction > this.#looks / 2,
      xminAge: this.#xminAge,
      walBytes: total(this.#wal),
      cpuMs: Math.round(total(this.#cpu) / 1e4) / 100,
    };
  }
}

/** A session that came later has done all that it did meanwhile. */
function count(counts: Map<number, Count>, pid: number, now: number, looks: number): void {
  const first = counts.get(pid)?.first ?? (looks > 1 ? 0 : now);
  counts.set(pid, { first, last: Math.max(now, counts.get(pid)?.last ?? 0) });
}

function total(counts: ReadonlyMap<number, Count>): number {
  return [...counts.values()].reduce((sum, { first, last }) => sum + last - first, 0);
}

/** Transactions of somebody else's, whose dead rows a held-back vacuum would keep. */
function tick(url: string): { stop(): Promise<void> } {
  let over = false;
  const run = async () => {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    while (!over) {
      await client.query('SELECT pg_current_xact_id()');
      await delay(transactionEveryMs);
    }
    await client.end();
  };
  const running = run();
  return {
    async stop() {
      over = true;
      await running;
    },
  };
}
