/**
 * Ourselves beside peers, which live in a package of their own (peers/): installed when it is asked for, run by the Node
 * that Lambda runs, in a process of its own that measures there and tells what it found. Here is what stands around it: a
 * database for each peer, a real Redis, a stand-in for DynamoDB, and networks of a given length to all three.
 */
import { execFile, fork, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, readFile, stat } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import pg from 'pg';
import { freePort } from '../../infra/local/postgres.ts';
import { hasPgbouncer, pgbouncerWay } from '../faults/ways.ts';
import { startLag, type Lag } from './lag.ts';
import type { Spread } from './pairs.ts';
import type { Stand } from './stand.ts';

export type Shelf = 'PostgreSQL' | 'Redis' | 'DynamoDB';

export const peerNames = [
  'Cronce',
  'Cronce, lockDelayMs 0',
  'bare recipe',
  'bare recipe by a transaction’s lock',
  'redlock',
  'node-cron',
  'pg-boss',
  'graphile-worker',
  'DBOS',
  'Powertools idempotency',
] as const;
export type PeerName = (typeof peerNames)[number];

/** What stands beside each figure of a peer's. */
export interface Peered {
  readonly name: PeerName;
  readonly on: Shelf;
  readonly resident: boolean;
  readonly setUp: string;
  /** Why it was not measured, if it was not. */
  readonly absent?: string;
}

export interface Price {
  readonly peer: PeerName;
  /** One way. */
  readonly latencyMs: number;
  readonly what: 'run' | 'skip';
  /** To the bare recipe's, and to ours. */
  readonly toBare: Spread;
  readonly toOurs: Spread;
  readonly ms: Spread;
}

export const faults = ['SIGKILL', 'SIGSTOP', 'cable cut'] as const;
export type Fault = (typeof faults)[number];

export interface Recovery {
  readonly peer: PeerName;
  readonly fault: Fault;
  /** Until the slot's work began again; null where that was not within the patience. */
  readonly seconds: number | null;
}

export const lateAtS = [0, 1, 5, 30, 60, 120] as const;

export interface Late {
  readonly peer: PeerName;
  /** Which of the late deliveries ran the work once more. */
  readonly ranAgainAtS: readonly number[];
}

export interface Long {
  readonly peer: PeerName;
  /** At once, of those that it keeps or takes while it works. */
  readonly sessions: number;
  /** Whether one of them was in a transaction all the time. */
  readonly inTransaction: boolean;
  /** The most transactions by which it held vacuum back. */
  readonly xminAge: number;
  readonly walBytes: number;
  readonly cpuMs: number;
}

export interface Storm {
  readonly peer: PeerName;
  readonly road: 'straight' | 'pooled';
  readonly what: 'one slot' | 'a minute';
  /** Messages, with how many deliveries each was thrown by, in all rounds. */
  readonly thrown: Readonly<Record<string, number>>;
  readonly rounds: readonly {
    readonly works: number;
    readonly wholeMs: number;
    /** Of a delivery, the median. */
    readonly deliveryMs: number;
  }[];
}

interface Of<T> {
  readonly peers: readonly Peered[];
  readonly found: readonly T[];
}

export type Prices = Of<Price>;
export type Lates = Of<Late>;
export interface Recoveries extends Of<Recovery> {
  readonly patienceS: number;
}

export interface Longs extends Of<Long> {
  readonly seconds: number;
}
export interface Storms extends Of<Storm> {
  readonly deliveries: number;
}

/** What each part tells. */
export interface PeerParts {
  readonly peers: Prices;
  readonly recovery: Recoveries;
  readonly late: Lates;
  readonly storm: Storms;
  readonly long: Longs;
}
export type PeerPart = keyof PeerParts;

/** Where a peer finds what it stands on. */
export interface Ports {
  readonly latencyMs: number;
  readonly postgres: number;
  readonly redis: number;
  readonly dynamo: number;
}

/** What the process among the peers is told. */
export interface Orders {
  readonly part: PeerPart;
  readonly pairs: number;
  /** Straight to each one's own database, as the ordinary role. */
  readonly databases: Readonly<Partial<Record<PeerName, string>>>;
  readonly superuserUrl: string;
  /** To ours, by PgBouncer in transaction mode; the bare recipe's locks do there too. Absent, there is none. */
  readonly pooledUrl?: string;
  /** Straight first, and then the networks that were asked for. */
  readonly ports: readonly [Ports, ...Ports[]];
  /** Why those that stand on something can't be measured. */
  readonly absent: Readonly<Partial<Record<Shelf, string>>>;
}

const folder = fileURLToPath(new URL('peers/', import.meta.url));
const run = promisify(execFile);

/** @param latencies one way, ms: what networks of such a length are wanted for */
export async function amongPeers<P extends PeerPart>(
  stand: Stand,
  part: P,
  pairs: number,
  latencies: readonly number[] = [],
): Promise<PeerParts[P]> {
  await install();
  const stations = await startStations(stand, part);
  const lags: Lag[] = [];
  const pooler = part === 'storm' && (await hasPgbouncer()) ? await poolerOn(stand) : undefined;
  try {
    const ports: [Ports, ...Ports[]] = [stations.ports];
    for (const latencyMs of latencies) ports.push(await portsOver(stations.ports, latencyMs, lags));
    const orders: Orders = {
      part,
      pairs,
      databases: stations.databases,
      superuserUrl: stand.serverUrl,
      ports,
      absent: stations.absent,
      ...(pooler === undefined ? {} : { pooledUrl: pooler.url }),
    };
    return (await tell(orders)) as PeerParts[P];
  } finally {
    for (const lag of lags) await lag.stop();
    await pooler?.close();
    for (const child of stations.children) await end(child);
  }
}

async function tell(orders: Orders): Promise<unknown> {
  const child = fork(join(folder, 'main.ts'), [], {
    execPath: await node24(),
    execArgv: ['--disable-warning=ExperimentalWarning', '--disable-warning=DeprecationWarning'],
    cwd: folder,
  });
  child.send(orders);
  const ended = once(child, 'exit');
  const told = await Promise.race([
    once(child, 'message'),
    ended.then(([code]) => [{ failed: code as unknown }]),
  ]);
  const [answer] = told as [{ readonly found?: unknown; readonly failed?: unknown }];
  if (answer.found === undefined) throw new Error(`the peers' process ended with ${String(answer.failed)}`);
  await end(child);
  return answer.found;
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, 'exit');
  child.kill('SIGKILL');
  await ended;
}

// --- what they stand on -------------------------------------------------------------------------

interface Stations {
  readonly ports: Ports;
  readonly databases: Orders['databases'];
  readonly absent: Orders['absent'];
  readonly children: readonly ChildProcess[];
}

async function startStations(stand: Stand, part: PeerPart): Promise<Stations> {
  const databases = await databasesOn(stand, part);
  const dynamo = await freePort();
  const redis = await freePort();
  const inRedis = join(stand.folder, `redis-${redis}`);
  await mkdir(inRedis, { recursive: true });
  const children = [spawn(await node24(), ['node_modules/dynalite/cli.js', '--port', String(dynamo), '--createTableMs', '0'], { cwd: folder, stdio: 'ignore' })]; // prettier-ignore
  const hasRedis = await redisServer();
  // As it comes: the file of its settings is Debian's, and says what its defaults are.
  if (hasRedis) children.push(spawn('redis-server', ['--port', String(redis), '--bind', '127.0.0.1', '--dir', inRedis], { stdio: 'ignore' })); // prettier-ignore
  await Promise.all([untilOpen(dynamo), ...(hasRedis ? [untilOpen(redis)] : [])]);
  return {
    ports: { latencyMs: 0, postgres: stand.port, redis, dynamo },
    databases,
    absent: hasRedis ? {} : { Redis: 'no redis-server' },
    children,
  };
}

async function portsOver(straight: Ports, latencyMs: number, lags: Lag[]): Promise<Ports> {
  const over = async (target: number) => {
    const lag = await startLag({ target, ms: latencyMs });
    lags.push(lag);
    return lag.port;
  };
  const [postgres, redis, dynamo] = [await over(straight.postgres), await over(straight.redis), await over(straight.dynamo)]; // prettier-ignore
  return { latencyMs, postgres, redis, dynamo };
}

/** Each on PostgreSQL has its own, in each part: what they keep, and what their sessions do, is told apart by it. Ours is migrated. */
async function databasesOn(stand: Stand, part: PeerPart): Promise<Orders['databases']> {
  const root = new pg.Client({ connectionString: stand.serverUrl });
  await root.connect();
  const found: Partial<Record<PeerName, string>> = {};
  for (const [n, name] of peerNames.entries()) {
    const database = name.startsWith('Cronce') ? 'bench' : `${part}_${n}`;
    const known = await root.query('SELECT 1 FROM pg_database WHERE datname = $1', [database]);
    if (known.rowCount === 0) await root.query(`CREATE DATABASE ${database} OWNER bench`);
    const url = new URL(stand.url('bench'));
    url.pathname = `/${database}`;
    found[name] = url.href;
  }
  await root.end();
  return found;
}

async function untilOpen(port: number): Promise<void> {
  for (let tries = 0; tries < 400; tries++) {
    const socket = connect({ host: '127.0.0.1', port });
    const open = await once(socket, 'connect').then(
      () => true,
      () => false,
    );
    socket.destroy();
    if (open) return;
    await delay(25);
  }
  throw new Error(`nobody listens on port ${port}`);
}

/** A pool smaller than the server's connections, and far more clients than it lets in by default. */
async function poolerOn(stand: Stand): ReturnType<typeof pgbouncerWay> {
  const folderOfIts = join(stand.folder, 'pgbouncer');
  await mkdir(folderOfIts, { recursive: true });
  await chmod(folderOfIts, 0o755);
  return pgbouncerWay(stand.url('bench'), folderOfIts, 20, 'any', 2_000);
}

// --- what must be installed ---------------------------------------------------------------------

async function install(): Promise<void> {
  const [wanted, there] = [
    join(folder, 'package-lock.json'),
    join(folder, 'node_modules/.package-lock.json'),
  ];
  const age = async (file: string) => stat(file).then(({ mtimeMs }) => mtimeMs).catch(() => 0); // prettier-ignore
  if ((await age(there)) >= (await age(wanted))) return;
  // Nothing of theirs runs while it is installed; binaries are in the packages.
  await run('npm', ['ci', '--prefix', folder, '--ignore-scripts', '--no-audit', '--no-fund']);
  await run(process.execPath, [fileURLToPath(new URL('../../node_modules/typescript/bin/tsc', import.meta.url)), '-p', folder]); // prettier-ignore
}

/** Debian's, if it is there or can be had. */
async function redisServer(): Promise<boolean> {
  const there = async () => run('redis-server', ['--version']).then(() => true, () => false); // prettier-ignore
  if (await there()) return true;
  if (process.getuid?.() !== 0) return false;
  const apt = async (...words: string[]) => run('apt-get', ['-qq', '-y', '--no-install-recommends', ...words], { env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' } }); // prettier-ignore
  await apt('update').then(async () => apt('install', 'redis-server')).catch(() => undefined); // prettier-ignore
  return there();
}

/** Two of the peers want Node 22.18, and functions run on 24: it is in the package, for Linux. */
export async function node24(): Promise<string> {
  const packaged = join(folder, 'node_modules/node-24/bin/node');
  const there = await stat(packaged).then(() => true, () => false); // prettier-ignore
  if (there) return packaged;
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  if (major > 22 || (major === 22 && minor >= 18)) return process.execPath;
  throw new Error('the peers want Node 22.18 or newer, and npm has none for this machine');
}

/** Undefined where npm has none for this machine. */
export async function packagedNode(): Promise<
  { readonly path: string; readonly version: string } | undefined
> {
  await install();
  const path = await node24().catch(() => undefined);
  if (path === undefined) return undefined;
  const { stdout } = await run(path, ['--version']);
  return { path, version: stdout.trim() };
}

/** Of their Node and their packages, where they are told apart: what they stand on by themselves is left out. */
export async function peerVersions(): Promise<Readonly<Record<string, string>>> {
  const text = await readFile(join(folder, 'package.json'), 'utf8');
  const { dependencies } = JSON.parse(text) as { readonly dependencies: Record<string, string> };
  const { stdout: node } = await run(await node24(), ['-p', 'process.versions.node']);
  const redis = await run('redis-server', ['--version']).then(({ stdout }) => /v=(\S+)/.exec(stdout)?.[1], () => undefined); // prettier-ignore
  return { node: node.trim(), ...(redis === undefined ? {} : { redis }), ...dependencies };
}
