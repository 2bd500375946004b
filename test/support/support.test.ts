/** The tools which break things must themselves be right: each is shown at work on a real server. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import path from 'node:path';
import { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client as NeonClient } from '@neondatabase/serverless';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import { WebSocket } from 'ws';
import {
  type LocalPostgres,
  LocalPostgresError,
  type LocalPostgresOptions,
  startPostgres,
  startStandby,
} from '../../infra/local/postgres.ts';
import { type Relay, RelayError, startRelay } from '../../infra/local/relay.ts';
import { freshDatabase, type LeakError, type TestDatabase } from './database.ts';
import { type Proxy, startProxy } from './proxy.ts';
import { type ScratchFolder, scratchFolder } from './scratch.ts';

let db: TestDatabase;
beforeAll(async () => {
  db = await freshDatabase({ migrated: false });
  await db.query(`CREATE TABLE mark (name text PRIMARY KEY); GRANT INSERT ON mark TO ${db.role.name}`);
});
// Also the check that no fault below leaves a session on the server once its proxy is gone.
afterAll(() => db.drop());

type Driver = 'pg' | 'neon';
/** What both drivers have. */
interface Client {
  connect(): Promise<unknown>;
  query(sql: string, params?: unknown[]): Promise<{ readonly rows: Record<string, unknown>[] }>;
  end(): Promise<void>;
}

interface Line {
  readonly client: Client;
  readonly proxy: Proxy;
  /** Only where the driver needs one. */
  readonly relay: Relay | undefined;
}

/** A client connected through a proxy of its own, and for neon through a relay before that. */
async function connectVia(driver: Driver, database: { readonly url: string } = db): Promise<Line> {
  const proxy = await startProxy({ targetPort: Number(new URL(database.url).port) });
  const relay = driver === 'neon' ? await startRelay({ allow: [`127.0.0.1:${proxy.port}`] }) : undefined;
  onTestFinished(async () => {
    await Promise.all([proxy.stop(), relay?.stop()]);
  });
  const url = proxy.url(database.url);
  const client = relay === undefined ? pgClient(url) : neonClient(url, relay);
  await client.connect();
  return { client, proxy, relay };
}

function pgClient(url: string): Client {
  return new pg.Client({ connectionString: url }).on('error', () => undefined);
}

function neonClient(url: string, relay: Pick<Relay, 'wsProxy'>): Client {
  const client = new NeonClient(url);
  client.on('error', () => undefined);
  client.neonConfig.webSocketConstructor = WebSocket;
  client.neonConfig.wsProxy = (host, port) => `${relay.wsProxy}${host}:${port}`;
  client.neonConfig.useSecureWebSocket = false;
  client.neonConfig.pipelineTLS = false;
  client.neonConfig.pipelineConnect = 'password';
  return client;
}

/** Long enough to take silence for silence; for anything else the wait ends when it comes. */
const A_MOMENT_MS = 200;

/** What becomes of it: an answer, a failure, or nothing for so long. */
function fate(query: Promise<unknown>, withinMs = 10_000): Promise<'answered' | 'failed' | 'silence'> {
  const settled = query.then(
    () => 'answered' as const,
    () => 'failed' as const,
  );
  return Promise.race([settled, sleep(withinMs, 'silence' as const)]);
}

function eventually(assertion: () => unknown): Promise<unknown> {
  return vi.waitFor(assertion, { timeout: 10_000, interval: 20 });
}

function sessionsOf(pid: unknown): Promise<unknown[]> {
  return db.query('SELECT pid FROM pg_stat_activity WHERE pid = $1', [pid]);
}

async function backendOf(client: Client): Promise<unknown> {
  const { rows } = await client.query('SELECT pg_backend_pid() AS pid');
  return rows[0]?.['pid'];
}

describe.each(['pg', 'neon'] as const)('the proxy, with %s', (driver) => {
  test('counts round trips, and a query of several statements as one', async () => {
    const { client, proxy } = await connectVia(driver);
    expect(proxy.roundTrips).toBe(0);
    await client.query('BEGIN; SELECT 1; SELECT 2; COMMIT');
    expect(proxy.roundTrips).toBe(1);
    await client.query('SELECT $1::int AS n', [3]);
    await client.query('SELECT oops').catch(() => undefined);
    expect(proxy.roundTrips).toBe(3);
    expect(proxy.queries).toEqual([
      'BEGIN; SELECT 1; SELECT 2; COMMIT',
      'SELECT $1::int AS n',
      'SELECT oops',
    ]);
    await client.end();
    await eventually(() => expect(proxy.connections.map((one) => one.isOpen)).toEqual([false]));
  });

  test('passes what is larger than any buffer', async () => {
    const { client } = await connectVia(driver);
    const { rows } = await client.query(
      `SELECT (SELECT length($1)) AS size, repeat('x', 5000) AS filler FROM generate_series(1, 2000)`,
      ['y'.repeat(3_000_000)],
    );
    expect([rows.length, rows[0]?.['size']]).toEqual([2000, 3_000_000]);
  });

  test('cut: both sides see the end', async () => {
    const { client, proxy } = await connectVia(driver);
    const pid = await backendOf(client);
    const seen = proxy.waitForQuery(/pg_sleep/);
    const sleeping = client.query('SELECT pg_sleep(0.3)');
    const failed = fate(sleeping);
    await seen;
    proxy.cut();
    expect(await failed).toBe('failed');
    await eventually(async () => expect(await sessionsOf(pid)).toEqual([]));
  });

  test('partition: neither side is told, and what was lost makes heal() end the connection', async () => {
    const { client, proxy } = await connectVia(driver);
    const pid = await backendOf(client);
    proxy.partition();
    const lost = client.query('SELECT 1');
    expect(await fate(lost, A_MOMENT_MS)).toBe('silence');
    expect(await sessionsOf(pid)).toEqual([{ pid }]);
    await proxy.heal();
    expect(await fate(lost)).toBe('failed');
    await eventually(async () => expect(await sessionsOf(pid)).toEqual([]));
  });

  test('partition: a connection that was idle outlives it', async () => {
    const { client, proxy } = await connectVia(driver);
    // Before it, neon may still be reading what follows its password.
    await client.query('SELECT 1');
    proxy.partition();
    await proxy.heal();
    expect(await fate(client.query('SELECT 1'))).toBe('answered');
  });

  test('partition: the server can be made to lose its end, unknown to the client', async () => {
    const { client, proxy } = await connectVia(driver);
    const pid = await backendOf(client);
    proxy.partition({ serverSide: 'dropped' });
    await eventually(async () => expect(await sessionsOf(pid)).toEqual([]));
    expect(await fate(client.query('SELECT 1'), A_MOMENT_MS)).toBe('silence');
  });

  test('swallowReplyTo: COMMIT is done and nobody says so', async () => {
    const { client, proxy } = await connectVia(driver);
    const name = `swallowed ${driver}`;
    await client.query(`BEGIN; INSERT INTO mark VALUES ('${name}')`);
    const done = proxy.swallowReplyTo('COMMIT');
    const commit = client.query('COMMIT');
    await done;
    expect(await db.query('SELECT name FROM mark WHERE name = $1', [name])).toEqual([{ name }]);
    expect(await fate(commit, A_MOMENT_MS)).toBe('silence');
  });

  test('hold: COMMIT never reaches the server', async () => {
    const { client, proxy } = await connectVia(driver);
    const name = `held ${driver}`;
    const pid = await backendOf(client);
    await client.query(`BEGIN; INSERT INTO mark VALUES ('${name}')`);
    const held = proxy.waitForQuery('COMMIT', { hold: true });
    const commit = fate(client.query('COMMIT'));
    (await held).cut();
    expect(await commit).toBe('failed');
    await eventually(async () => expect(await sessionsOf(pid)).toEqual([]));
    expect(await db.query('SELECT name FROM mark WHERE name = $1', [name])).toEqual([]);
  });

  test.each(['toServer', 'toClient', 'both'] as const)('stall %s: held until resumed', async (direction) => {
    const { client, proxy } = await connectVia(driver);
    await client.query('SELECT 1');
    proxy.stall(direction);
    const late = client.query('SELECT 1');
    expect(await fate(late, A_MOMENT_MS)).toBe('silence');
    proxy.resume();
    expect(await fate(late)).toBe('answered');
  });

  test('delay: in both directions, in order', async () => {
    const { client, proxy } = await connectVia(driver);
    await client.query('SELECT 1');
    proxy.delay(50);
    const from = performance.now();
    const { rows } = await client.query('SELECT generate_series(1, 5000) AS n');
    expect(rows.map((row) => row['n'])).toEqual(Array.from({ length: 5_000 }, (_, index) => index + 1));
    expect(performance.now() - from).toBeGreaterThan(99);
  });

  test('a restart of the server ends the session', async () => {
    const { client } = await connectVia(driver, own);
    await client.query('SELECT 1');
    const seen = fate(client.query('SELECT pg_sleep(20)'));
    await own.restart('immediate');
    expect(await seen).toBe('failed');
  });
});

describe('the proxy, for new connections in a partition', () => {
  const attempt = (proxy: Proxy, withinMs?: number) => {
    const client = pgClient(proxy.url(db.url));
    const session = client.connect().then(() => client.end());
    return fate(session, withinMs);
  };

  test.each([
    ['hang', 'silence'],
    ['refuse', 'failed'],
    ['accept', 'answered'],
  ] as const)('%s: %s', async (newConnections, expected) => {
    const { proxy } = await connectVia('pg');
    proxy.partition({ newConnections });
    expect(await attempt(proxy, expected === 'silence' ? A_MOMENT_MS : undefined)).toBe(expected);
    await proxy.heal();
    expect(await attempt(proxy)).toBe('answered');
  });
});

describe('the relay', () => {
  async function lineWithRelay(): Promise<Line & { readonly relay: Relay }> {
    const line = await connectVia('neon');
    if (line.relay === undefined) throw new Error('no relay');
    await line.client.query('SELECT 1');
    return { ...line, relay: line.relay };
  }

  test('kill: drops all, and takes new ones', async () => {
    const { client, proxy, relay } = await lineWithRelay();
    const pid = await backendOf(client);
    const pending = fate(client.query('SELECT pg_sleep(0.3)'));
    await proxy.waitForQuery(/pg_sleep/);
    expect(relay.connections()).toBe(1);
    relay.kill();
    expect(await pending).toBe('failed');
    await eventually(async () => expect(await sessionsOf(pid)).toEqual([]));
    const another = neonClient(proxy.url(db.url), relay);
    await another.connect();
    expect(await fate(another.query('SELECT 1'))).toBe('answered');
    await another.end();
    await eventually(() => expect(relay.connections()).toBe(0));
  });

  test('stall: open connections and new ones hear nothing until resume()', async () => {
    const { client, proxy, relay } = await lineWithRelay();
    relay.stall();
    const pending = client.query('SELECT 1');
    const another = neonClient(proxy.url(db.url), relay);
    const connecting = another.connect().then(() => another.query('SELECT 1'));
    expect(await Promise.all([fate(pending, A_MOMENT_MS), fate(connecting, A_MOMENT_MS)])).toEqual([
      'silence',
      'silence',
    ]);
    relay.resume();
    expect(await Promise.all([fate(pending), fate(connecting)])).toEqual(['answered', 'answered']);
  });

  test('an end on either side reaches the other', async () => {
    const { client, proxy, relay } = await lineWithRelay();
    const pending = fate(client.query('SELECT pg_sleep(0.3)'));
    await proxy.waitForQuery(/pg_sleep/);
    proxy.cut();
    expect(await pending).toBe('failed');
    await eventually(() => expect(relay.connections()).toBe(0));
  });

  test('refuses addresses that are not allowed, and ones that do not answer', async () => {
    const relay = await startRelay({ allow: ['127.0.0.1:1'] });
    onTestFinished(() => relay.stop());
    expect(await statusOf(relay, '127.0.0.1:2')).toBe(403);
    expect(await statusOf(relay, '')).toBe(403);
    expect(await statusOf(relay, '127.0.0.1:1')).toBe(502);
    const failure: unknown = await neonClient('postgres://a:b@127.0.0.1:2/c', relay)
      .connect()
      .catch((e: unknown) => e);
    expect(failure).toMatchObject({ type: 'error', message: 'Unexpected server response: 403' });
  });

  test('reads no further than the client does', async () => {
    const piece = Buffer.alloc(64 * 1024);
    const pieces = 1024;
    const size = pieces * piece.length;
    const server = createServer((socket) => {
      Readable.from(Array(pieces).fill(piece)).pipe(socket);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const address = `127.0.0.1:${(server.address() as AddressInfo).port}`;
    const relay = await startRelay({ allow: [address] });
    onTestFinished(async () => {
      await relay.stop();
      server.close();
    });
    const accepted = once(server, 'connection');
    const client = new WebSocket(`ws://${relay.wsProxy}${address}`);
    let received = 0;
    client.on('message', (data: Buffer) => (received += data.length));
    client.on('open', () => client.pause());
    const [sender] = (await accepted) as [Socket];
    let before: number;
    do {
      before = sender.bytesWritten;
      await sleep(A_MOMENT_MS);
    } while (sender.bytesWritten !== before);
    // The rest of it is what the kernel holds for the two connections.
    expect(sender.bytesWritten).toBeLessThan(size / 2);
    client.resume();
    await once(client, 'close');
    expect(received).toBe(size);
  });

  test('says when its port is taken', async () => {
    const { relay } = await lineWithRelay();
    const second = startRelay({ port: relay.port, allow: [] });
    await expect(second).rejects.toThrow(RelayError);
  });

  async function statusOf(relay: Relay, address: string): Promise<number | undefined> {
    const socket = new WebSocket(`ws://${relay.wsProxy}${address}`).on('error', () => undefined);
    const [, response] = (await once(socket, 'unexpected-response')) as [
      unknown,
      { readonly statusCode?: number },
    ];
    return response.statusCode;
  }
});

let scratch: ScratchFolder;
let folder: string;
let own: LocalPostgres;
beforeAll(async () => {
  scratch = await scratchFolder();
  folder = scratch.path;
  own = await startPostgres({ dataDir: path.join(folder, 'own'), settings: { fsync: 'off' } });
  await ask(own.url, 'CREATE TABLE kept AS SELECT 1 AS n');
});
afterAll(async () => {
  await own.kill();
  await scratch.remove();
});

async function ask(url: string, sql: string): Promise<unknown[]> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => undefined);
  await client.connect();
  return client
    .query<Record<string, unknown>>(sql)
    .then(({ rows }) => rows)
    .finally(() => client.end());
}

describe('the local server', () => {
  const kept = [{ n: 1 }];

  test('keeps its data over every kind of end, on the same port', async () => {
    for (const mode of ['fast', 'immediate'] as const) {
      await own.restart(mode);
      expect(await ask(own.url, 'SELECT n FROM kept')).toEqual(kept);
    }
    const { dataDir, port, settings } = own;
    await own.kill();
    await own.stop();
    // As a machine that lost its power leaves it, with a number that belongs to some other process by now.
    await writeFile(path.join(dataDir, 'postmaster.pid'), `${process.pid}\n${dataDir}\n`);
    own = await startPostgres({ dataDir, port, settings });
    expect(await ask(own.url, 'SELECT n FROM kept')).toEqual(kept);
  });

  test('listens nowhere but on loopback, and only with its password', async () => {
    expect(await ask(own.url, 'SHOW listen_addresses')).toEqual([{ listen_addresses: '127.0.0.1' }]);
    expect(await ask(own.url, 'SHOW unix_socket_directories')).toEqual([{ unix_socket_directories: '' }]);
    const wrong = ask(own.url.replace(own.password, 'password'), 'SELECT 1');
    await expect(wrong).rejects.toMatchObject({ code: '28P01' });
  });

  test('ends with its owner, however that dies', async () => {
    // Below a folder that none but its owner may enter, which for root takes another way to start.
    const closed = path.join(folder, 'closed');
    await mkdir(closed, { mode: 0o700 });
    const dataDir = path.join(closed, 'orphan');
    const module = new URL('../../infra/local/postgres.ts', import.meta.url).href;
    const script = `
      import { startPostgres } from '${module}';
      const { url } = await startPostgres({ dataDir: '${dataDir}', settings: { fsync: 'off' } });
      console.log(url);`;
    const owner = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', script], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const [line] = (await once(owner.stdout, 'data')) as [Buffer];
    const url = line.toString().trim();
    await ask(url, 'CREATE TABLE kept AS SELECT 1 AS n');
    await expect(startPostgres({ dataDir })).rejects.toMatchObject({ code: 'already_running' });
    owner.kill('SIGKILL');
    const refused = () => expect(ask(url, 'SELECT 1')).rejects.toMatchObject({ code: 'ECONNREFUSED' });
    await eventually(refused);
    const heir = await startPostgres({ dataDir, settings: { fsync: 'off' } });
    onTestFinished(() => heir.kill());
    expect(await ask(heir.url, 'SELECT n FROM kept')).toEqual(kept);
  });

  test('says in one line why it cannot start', async () => {
    const strange = async (name: string, file: string) => {
      const dataDir = path.join(folder, name);
      await mkdir(dataDir);
      await writeFile(path.join(dataDir, file), '9\n');
      return dataDir;
    };
    const failures = [
      ['already_running', { dataDir: own.dataDir }],
      ['data_dir', { dataDir: await strange('full', 'a file') }],
      ['data_dir', { dataDir: path.join(folder, 'full', 'a file', 'below') }],
      ['data_version', { dataDir: await strange('old', 'PG_VERSION') }],
    ] as const;
    for (const [code, options] of failures) {
      const failure = await failureOf(options);
      expect(failure.code).toBe(code);
      expect(failure.message).toMatch(/^.+: .+$/);
    }
  });

  test('names the port that is taken, and the setting that is wrong', async () => {
    const dataDir = path.join(folder, 'second');
    const taken = await failureOf({ dataDir, port: own.port });
    expect([taken.code, taken.message]).toEqual(['port_in_use', expect.stringContaining(`Port ${own.port}`)]);
    const wrong = await failureOf({ dataDir, settings: { no_such: '1' } });
    expect([wrong.code, wrong.message]).toEqual(['not_ready', expect.stringContaining('no_such')]);
  });

  async function failureOf(options: LocalPostgresOptions): Promise<LocalPostgresError> {
    const failure: unknown = await startPostgres(options).catch((error: unknown) => error);
    if (failure instanceof LocalPostgresError) return failure;
    throw new Error('It started, or failed in some other way', { cause: failure });
  }

  test('has a standby that follows and refuses to write', async () => {
    const standby = await startStandby(own, { dataDir: path.join(folder, 'standby') });
    onTestFinished(() => standby.kill());
    await ask(own.url, 'CREATE TABLE later AS SELECT 2 AS n');
    await eventually(async () => expect(await ask(standby.url, 'SELECT n FROM later')).toEqual([{ n: 2 }]));
    const writing = ask(standby.url, 'INSERT INTO kept VALUES (3)');
    await expect(writing).rejects.toMatchObject({ code: '25006' });
  });
});

describe('the fresh database', () => {
  test('is nobody else’s', async () => {
    const databases = await Promise.all([1, 2, 3].map(() => freshDatabase({ migrated: false })));
    const [first] = databases;
    await first?.query('CREATE TABLE mine ()');
    const tables = databases.map((one) => one.query(`SELECT to_regclass('mine') IS NULL AS clean`));
    expect((await Promise.all(tables)).flat().map((row) => row['clean'])).toEqual([false, true, true]);
    await Promise.all(databases.map((one) => one.drop()));
  });

  test('names the session and the lock that were left behind, and is dropped all the same', async () => {
    const leaky = await freshDatabase({ migrated: false });
    const client = pgClient(leaky.url);
    await client.connect();
    await client.query('SELECT pg_advisory_lock(42)');
    const failure = (await leaky.drop().catch((error: unknown) => error)) as LeakError;
    expect(failure).toMatchObject({ name: 'LeakError', leaks: { length: 2 } });
    expect(failure.leaks.join()).toMatch(/session \d+ .*pg_advisory_lock\(42\).*advisory lock 0:42/);
    expect(await db.query('SELECT 1 FROM pg_database WHERE datname = $1', [leaky.name])).toEqual([]);
  });
});

describe('the test bed', () => {
  test('is an ordinary role in a database of odd defaults, and plain to the tests themselves', async () => {
    const migrated = await freshDatabase({ examples: true });
    const client = pgClient(migrated.url);
    await client.connect();
    const look = `SELECT format('%s %s %s %s', rolsuper, rolcreatedb, rolcreaterole, rolreplication) AS rights,
        ARRAY(SELECT m.roleid::regrole::text FROM pg_auth_members m JOIN pg_roles p ON p.oid = m.roleid
          WHERE m.member = r.oid AND p.rolname LIKE 'pg\\_%') AS member_of,
        ARRAY(SELECT nspname::text FROM pg_namespace WHERE nspowner = r.oid ORDER BY 1) AS owns,
        (SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()) AS database_of,
        make_date(2026, 11, 29)::text AS date,
        current_setting('default_transaction_isolation') AS isolation, current_setting('lock_timeout') AS waits
      FROM pg_roles r WHERE rolname = $1`;
    expect((await client.query(look, [migrated.role.name])).rows).toEqual([
      {
        rights: 'f f f f',
        member_of: [],
        owns: ['app', 'cronce'],
        database_of: 'postgres',
        date: '29.11.2026',
        isolation: 'serializable',
        waits: '3s',
      },
    ]);
    expect(await migrated.query(look, [migrated.role.name])).toMatchObject([
      { date: '2026-11-29', isolation: 'read committed', waits: '0' },
    ]);
    await client.end();
    await migrated.drop();
  });
});
