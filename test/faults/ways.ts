/** The ways from a worker to the server: straight, through a pooler, or over a WebSocket relay. */
import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { access, chown, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { freePort } from '../../infra/local/postgres.ts';
import { startRelay, type Relay } from '../../infra/local/relay.ts';
import type { Target } from '../../src/postgres/driver.ts';
import { startProxy, type Proxy } from '../support/proxy.ts';

/** One worker's own way. */
export interface Road {
  readonly target: Target;
  /** In the way, if asked for. */
  readonly proxy: Proxy;
  readonly relay: Relay | undefined;
  /** Has the network itself swallow every packet between here and the server, where it can. */
  vanish?(): Promise<void>;
  close(): Promise<void>;
}

/** A trial's way: all its roads end in the same database and, with a pooler, in the same pool. */
export interface Way {
  readonly name: 'direct' | 'pgbouncer' | 'neon' | 'far';
  /** @param lane which of several trials at a time: each has a pool of its own */
  open(lane: number): Promise<Road>;
  close(): Promise<void>;
}

/** Short, so that a delivery behind a partition ends within a trial. */
const connectTimeoutMs = 2_500;

export function directWay(databaseUrl: string): Way {
  return {
    name: 'direct',
    open: () => openRoad(databaseUrl),
    close: () => Promise.resolve(),
  };
}

const run = promisify(execFile);

/**
 * Each road to an address of its own, which can be made a hole: in a network namespace of one's own, as root, whose
 * server listens at all addresses.
 */
export function farWay(databaseUrl: string): Way {
  let roads = 0;
  return {
    name: 'far',
    async open() {
      const host = `10.9.9.${++roads}`;
      const ip = async (...words: string[]): Promise<void> => {
        await run('ip', words);
      };
      await ip('address', 'add', `${host}/32`, 'dev', 'lo');
      const vanish = () => ip('route', 'replace', 'blackhole', `${host}/32`, 'table', 'local');
      return { ...(await openRoad(databaseUrl, host)), vanish };
    },
    close: () => Promise.resolve(),
  };
}

async function openRoad(url: string, targetHost?: string): Promise<Road> {
  const targetPort = Number(new URL(url).port);
  const proxy = await startProxy({ targetPort, ...(targetHost === undefined ? {} : { targetHost }) });
  const target: Target = { url: proxy.url(url), driver: 'pg', connectTimeoutMs };
  return { target, proxy, relay: undefined, close: () => proxy.stop() };
}

export function neonWay(databaseUrl: string): Way {
  return {
    name: 'neon',
    async open() {
      const direct = await openRoad(databaseUrl);
      const relay = await startRelay({ allow: [new URL(direct.target.url).host] });
      const target: Target = { ...direct.target, driver: 'neon', relay: relay.wsProxy };
      const close = async () => {
        await relay.stop();
        await direct.close();
      };
      return { target, proxy: direct.proxy, relay, close };
    },
    close: () => Promise.resolve(),
  };
}

const pgbouncer = '/usr/sbin/pgbouncer';
export const lanesAtMost = 8;

export async function hasPgbouncer(): Promise<boolean> {
  return access(pgbouncer).then(
    () => true,
    () => false,
  );
}

/** How PgBouncer lets its clients in: anyone, or who knows the password. */
export type PoolerLogin = 'any' | 'plain' | 'md5' | 'scram-sha-256';

/** PgBouncer in transaction mode, with a pool of so many sessions a lane; by default it lets 100 clients in. */
export async function pgbouncerWay(
  databaseUrl: string,
  folder: string,
  poolSize = 2,
  login: PoolerLogin = 'any',
  clientsAtMost = 100,
): Promise<Way & { readonly url: string }> {
  const port = await freePort();
  const config = path.join(folder, `pgbouncer-${port}.ini`);
  const users = path.join(folder, `pgbouncer-${port}.users`);
  await writeFile(config, configuration(databaseUrl, { port, poolSize, login, users, clientsAtMost }), {
    mode: 0o600,
  });
  await writeFile(users, '"any" "secret"\n', { mode: 0o600 });
  const bouncer = await launch(config, users);
  await untilItListens(port);
  const urlOf = (lane: number) => `postgres://any:secret@127.0.0.1:${port}/lane_${lane}`;
  return {
    name: 'pgbouncer',
    url: urlOf(0),
    open: (lane) => openRoad(urlOf(lane)),
    async close() {
      const ended = once(bouncer, 'exit');
      bouncer.kill('SIGKILL');
      await ended;
    },
  };
}

interface PoolerSettings {
  readonly port: number;
  readonly poolSize: number;
  readonly login: PoolerLogin;
  readonly users: string;
  readonly clientsAtMost: number;
}

function configuration(
  databaseUrl: string,
  { port, poolSize, login, users, clientsAtMost }: PoolerSettings,
): string {
  const { hostname, port: serverPort, pathname, username, password } = new URL(databaseUrl);
  const server = `host=${hostname} port=${serverPort} dbname=${pathname.slice(1)} user=${username} password=${password}`;
  const lanes = Array.from({ length: lanesAtMost }, (_, lane) => `lane_${lane} = ${server}`);
  return [
    '[databases]',
    ...lanes,
    '[pgbouncer]',
    'listen_addr = 127.0.0.1',
    `listen_port = ${port}`,
    'unix_socket_dir =',
    `auth_type = ${login}`,
    `auth_file = ${users}`,
    'pool_mode = transaction',
    `default_pool_size = ${poolSize}`,
    `max_client_conn = ${clientsAtMost}`,
    // After a restart of the server it would turn clients away for 15 s.
    'server_login_retry = 1',
    '',
  ].join('\n');
}

/** It refuses to run as root. */
async function launch(config: string, users: string): Promise<ChildProcess> {
  const root = process.getuid?.() === 0;
  const nobody = 65_534;
  if (root) await Promise.all([config, users].map(async (file) => chown(file, nobody, nobody)));
  const bouncer = spawn(pgbouncer, ['-q', config], {
    stdio: 'ignore',
    ...(root ? { uid: nobody, gid: nobody } : {}),
  });
  const end = () => bouncer.kill('SIGKILL');
  process.once('exit', end);
  bouncer.once('exit', () => process.off('exit', end));
  return bouncer;
}

async function untilItListens(port: number): Promise<void> {
  for (let tries = 0; tries < 200; tries++) {
    const socket = connect({ host: '127.0.0.1', port });
    const reached = await once(socket, 'connect').then(
      () => true,
      () => false,
    );
    socket.destroy();
    if (reached) return;
    await delay(25);
  }
  throw new Error(`PgBouncer does not listen on port ${port}`);
}
