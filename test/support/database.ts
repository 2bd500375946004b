/**
 * A database for each test file, cloned from a migrated template on the run's one server.
 *
 *     const db = await freshDatabase();
 *     afterAll(() => db.drop());
 *
 * `db.url` is that of an ordinary role, in a database with odd defaults (see bed.ts). The tests themselves look on, and
 * do harm, as the superuser, by sessions with plain settings: `db.query`.
 *
 * `drop()` first makes sure that the code under test has left nothing behind: no session, no advisory lock.
 */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { urlFor, type Role } from '../../infra/local/role.ts';
import { layBed, ordinaryRole, setPlain } from './bed.ts';

export interface FreshDatabaseOptions {
  /** Whether it has the coordinator's schema; true if not given. */
  readonly migrated?: boolean;
  /** Whether it also has the example jobs' schema. */
  readonly examples?: boolean;
  /** The server to make it on, as its superuser; the run's own if not given. */
  readonly serverUrl?: string;
}

export interface TestDatabase {
  /** For the code under test: the ordinary role's. */
  readonly url: string;
  /** For the tests' own hands: the superuser's. */
  readonly superuserUrl: string;
  readonly name: string;
  readonly role: Role;
  /** As superuser, on a session that the leak check does not count. Of several statements the last one's rows. */
  query(sql: string, params?: readonly unknown[]): Promise<Record<string, unknown>[]>;
  /** The same as the ordinary role, without parameters: for what shall belong to it. */
  queryAsRole(sql: string): Promise<void>;
  /** Throws a LeakError unless, within a second, no other session and no advisory lock is left. */
  assertNoLeaks(): Promise<void>;
  /** Drops it in any case, and throws what assertNoLeaks has found. */
  drop(): Promise<void>;
}

export class LeakError extends Error {
  override readonly name = 'LeakError';
  readonly leaks: readonly string[];

  constructor(database: string, leaks: readonly string[]) {
    super(`Left behind in ${database}:\n${leaks.join('\n')}`);
    this.leaks = leaks;
  }
}

const OWN_SESSIONS = 'cronce test support';
const LEAKS_END_WITHIN_MS = 1_000;
/** For CREATE DATABASE, as a template must not be in use, and so that only one worker makes it. */
const TEMPLATE_LOCK = 7_261_001;

export async function freshDatabase(options: FreshDatabaseOptions = {}): Promise<TestDatabase> {
  const serverUrl = options.serverUrl ?? (await serverOfThisRun());
  const name = `test_${randomUUID().replaceAll('-', '')}`;
  await onServer(serverUrl, async (server) => {
    await server.query('SELECT pg_advisory_lock($1)', [TEMPLATE_LOCK]);
    await create(server, serverUrl, name, await template(server, serverUrl, options));
  });
  return open(serverUrl, name);
}

/** Not imported at the top, as the fault campaign runs without vitest. */
async function serverOfThisRun(): Promise<string> {
  const { inject } = await import('vitest');
  return inject('postgresUrl');
}

async function template(
  server: pg.Client,
  serverUrl: string,
  options: FreshDatabaseOptions,
): Promise<string> {
  const { migrated = true, examples = false } = options;
  if (!migrated) return 'template0';
  const name = examples ? 'template_examples' : 'template_migrated';
  const known = await server.query('SELECT 1 FROM pg_database WHERE datname = $1', [name]);
  if (known.rowCount === 1) return name;
  // Renamed only when done, so that migrations which fail leave no template.
  const draft = `${name}_draft`;
  await server.query(`DROP DATABASE IF EXISTS ${draft} WITH (FORCE)`);
  await create(server, serverUrl, draft, 'template0');
  const { migrate } = await import('../../infra/migrate.ts');
  const { examples: tables } = await import('./checkout.ts');
  // By the ordinary role, which so owns the schemas; clones keep owners.
  await migrate(urlFor(serverUrl, ordinaryRole(serverUrl), draft), { ...(examples && { examples: tables }) });
  await server.query(`ALTER DATABASE ${draft} RENAME TO ${name}`);
  return name;
}

async function create(server: pg.Client, serverUrl: string, name: string, from: string): Promise<void> {
  // Copying files makes a checkpoint first, which is slow; PostgreSQL 14 knows no other way.
  const { rows } = await server.query<{ version: number }>(
    `SELECT current_setting('server_version_num')::int AS version`,
  );
  const strategy = (rows[0]?.version ?? 0) >= 150_000 ? 'STRATEGY = WAL_LOG' : '';
  await server.query(`CREATE DATABASE ${name} TEMPLATE ${from} ${strategy}`);
  await layBed(server, ordinaryRole(serverUrl), name);
}

function open(serverUrl: string, name: string): TestDatabase {
  const role = ordinaryRole(serverUrl);
  const superuserUrl = urlOf(serverUrl, name);
  const pool = new pg.Pool({
    connectionString: superuserUrl,
    max: 4,
    application_name: OWN_SESSIONS,
    ssl: false,
    // eslint-disable-next-line @typescript-eslint/no-misused-promises -- the pool waits for it, though its types say void
    onConnect: setPlain,
  });
  pool.on('error', () => undefined);
  const assertNoLeaks = () => onServer(serverUrl, (server) => refuseLeaks(server, name));
  return {
    url: urlFor(serverUrl, role, name),
    superuserUrl,
    name,
    role,
    async query(sql, params) {
      const results = [
        await pool.query<Record<string, unknown>>(sql, params === undefined ? [] : [...params]),
      ];
      return results.flat().at(-1)?.rows ?? [];
    },
    async queryAsRole(sql) {
      // One message, so one transaction: an error takes the role back too.
      await pool.query(`SET ROLE ${role.name}; ${sql}; RESET ROLE`);
    },
    assertNoLeaks,
    async drop() {
      await pool.end();
      try {
        await assertNoLeaks();
      } finally {
        await onServer(serverUrl, (server) => server.query(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`));
      }
    },
  };
}

async function refuseLeaks(server: pg.Client, database: string): Promise<void> {
  const deadline = performance.now() + LEAKS_END_WITHIN_MS;
  for (;;) {
    const leaks = await findLeaks(server, database);
    if (leaks.length === 0) return;
    if (performance.now() > deadline) throw new LeakError(database, leaks);
    await sleep(20);
  }
}

async function findLeaks(server: pg.Client, database: string): Promise<string[]> {
  const { rows } = await server.query<{ leak: string }>(
    `SELECT format('session %s (%s), %s: %s', pid, application_name, state, query) AS leak
       FROM pg_stat_activity
      WHERE datname = $1 AND backend_type = 'client backend' AND application_name <> $2
     UNION ALL
     SELECT format('advisory lock %s:%s of session %s, %s: %s', classid, objid, l.pid, state, query)
       FROM pg_locks l
       JOIN pg_database d ON d.oid = l.database
       LEFT JOIN pg_stat_activity a ON a.pid = l.pid
      WHERE d.datname = $1 AND locktype = 'advisory'`,
    [database, OWN_SESSIONS],
  );
  return rows.map((row) => row.leak);
}

async function onServer<T>(serverUrl: string, use: (server: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: serverUrl, application_name: OWN_SESSIONS, ssl: false });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.end();
  }
}

function urlOf(serverUrl: string, database: string): string {
  const url = new URL(serverUrl);
  url.pathname = `/${database}`;
  return url.href;
}
