/** What is measured on: a server with fsync on a real disk, an ordinary role in a plain database, and ways to get there. */
import { execFile } from 'node:child_process';
import { chmod, chown, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { startRelay, type Relay } from '../../infra/local/relay.ts';
import { admit, makeRole, urlFor } from '../../infra/local/role.ts';
import { migrate } from '../../infra/migrate.ts';
import { examples } from '../support/checkout.ts';
import { startServer } from '../support/server.ts';

const run = promisify(execFile);
/** Asked for in cleartext, and by SCRAM. */
const roles = ['bench', 'bench_scram'] as const;
const password = 'benchmark';

export interface Stand {
  readonly folder: string;
  readonly port: number;
  /** As its superuser. */
  readonly serverUrl: string;
  readonly version: string;
  url(role: (typeof roles)[number], rest?: string): string;
  relayTo(port: number): Promise<Relay>;
  query(sql: string): Promise<readonly Record<string, unknown>[]>;
  stop(): Promise<void>;
}

export async function startStand(): Promise<Stand> {
  const folder = await mkdtemp(join(tmpdir(), 'cronce-bench-')); // never in memory: writing to disk is measured
  await chmod(folder, 0o711);
  const server = await startServer({ dataDir: join(folder, 'server'), settings: { fsync: 'on' } });
  const root = new pg.Client({ connectionString: server.url });
  await root.connect();
  await prepare(root, server.dataDir);
  const url = (role: string, rest = '') => urlFor(server.url, { name: role, password }, 'bench') + rest;
  await migrate(url('bench'), { examples });
  const here = new pg.Client({ connectionString: url('bench') });
  await here.connect();
  await root.query('GRANT bench TO bench_scram');
  const { rows } = await root.query<{ version: string }>(
    `SELECT current_setting('server_version') AS version`,
  );
  return {
    folder,
    port: server.port,
    serverUrl: server.url,
    version: rows[0]?.version ?? '',
    url,
    relayTo: async (port) => startRelay({ allow: [`127.0.0.1:${port}`] }),
    query: async (sql) => (await here.query<Record<string, unknown>>(sql)).rows,
    async stop() {
      await Promise.all([here.end(), root.end()]);
      await server.kill();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

async function prepare(root: pg.Client, dataDir: string): Promise<void> {
  await root.query('CREATE DATABASE bench');
  for (const name of roles) {
    await makeRole(root, { name, password });
    await admit(root, { name, password }, 'bench');
  }
  const rules = join(dataDir, 'pg_hba.conf');
  await writeFile(rules, `host all bench_scram 127.0.0.1/32 scram-sha-256\n${await readFile(rules, 'utf8')}`);
  await certify(dataDir);
  await root.query('ALTER SYSTEM SET ssl = on');
  await root.query('SELECT pg_reload_conf()');
}

/** A certificate for TLS, signed by nobody. */
async function certify(dataDir: string): Promise<void> {
  const [key, certificate] = [join(dataDir, 'server.key'), join(dataDir, 'server.crt')];
  await run('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=bench', '-keyout', key, '-out', certificate]); // prettier-ignore
  const { uid, gid } = await stat(dataDir);
  await Promise.all([chown(key, uid, gid), chown(certificate, uid, gid), chmod(key, 0o600)]);
}
