import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { chmod, chown, readFile, stat, writeFile } from 'node:fs/promises';
import { createServer as createHttpServer } from 'node:http';
import { createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import path from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startPostgres, type LocalPostgres } from '../../infra/local/postgres.ts';
import { startRelay, type Relay } from '../../infra/local/relay.ts';
import type { Target } from '../../src/postgres/driver.ts';
import { AccessRefused, CannotConnect, ConnectionLost, PostgresError } from '../../src/postgres/errors.ts';
import { elapsedMs } from '../../src/postgres/moment.ts';
import { Session } from '../../src/postgres/session.ts';
import { startLag, through, type Lag } from '../bench/lag.ts';
import { targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { scratchFolder, type ScratchFolder } from '../support/scratch.ts';

const run = promisify(execFile);
type Limit = { readonly timeoutMs?: number };
const failing = async (opening: Promise<Session>): Promise<PostgresError> =>
  opening.then(
    async (session) => {
      // With the password ahead a refusal shows at the first message.
      const failure = session.send('SELECT 1').then(
        () => new PostgresError('it connected'),
        (error: unknown) => error as PostgresError,
      );
      await failure.finally(() => session.close());
      return failure;
    },
    (error: unknown) => error as PostgresError,
  );
/** Of a session that is opened, and the same of one that connects with its first message. */
const failureOf = async (target: Target, limit?: Limit): Promise<PostgresError> => {
  const failure = await failing(Session.open(target, limit));
  const atFirst = await failing(Session.atFirstMessage(target, limit));
  expect([atFirst.name, atFirst.message]).toEqual([failure.name, failure.message]);
  return failure;
};
const works = async (target: Target) => {
  for (const session of [await Session.open(target), await Session.atFirstMessage(target)]) {
    for (const n of [1, 2]) expect((await session.send(`SELECT ${n} AS n`)).at(-1)?.rows).toEqual([{ n }]);
    await session.close();
  }
};
/** One line, with the words asked for, and no secret in it or behind it. */
const expectCure = (error: PostgresError, kind: new (message: string) => PostgresError, words: RegExp) => {
  expect(error.message).toMatch(words);
  expect(error).toBeInstanceOf(kind);
  expect(error.message).not.toContain('\n');
  expect(`${error.stack ?? ''} ${String(error.cause)}`).not.toMatch(/sesame|postgres:\/\/\S+@/);
};

let folder: ScratchFolder;
let db: TestDatabase;
beforeAll(async () => {
  folder = await scratchFolder();
  db = await freshDatabase();
});
afterAll(async () => {
  await db.drop();
  await folder.remove();
});

async function listen(server: Server): Promise<{ port: number; close: () => void }> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => {
    socket.on('error', () => undefined);
    sockets.add(socket);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const close = () => {
    sockets.forEach((socket) => socket.destroy());
    server.close();
  };
  return { port: (server.address() as AddressInfo).port, close };
}
const at = (port: number, rest = '') => `postgres://u:sesame@127.0.0.1:${port}/db${rest}`;
const changed = (change: (url: URL) => void, from = db.url) => {
  const url = new URL(from);
  change(url);
  return url.href;
};

describe('a server that refuses', () => {
  it.each<[string, (url: URL) => void, RegExp]>([
    [
      'a wrong password',
      (url) => (url.password = 'sesame'),
      /28P01.*check user and password in DATABASE_URL/,
    ],
    ['no password', (url) => (url.password = ''), /asks for a password, and none is given: .*PGPASSWORD/],
    ['an unknown database', (url) => (url.pathname = '/nowhere'), /3D000.*database name in DATABASE_URL/],
    ['an unknown role', (url) => (url.username = 'nobody'), /check user and password in DATABASE_URL/],
  ])('%s: each by its own cure', async (_what, change, words) => {
    expectCure(await failureOf(targetOf(changed(change))), AccessRefused, words);
  });

  it('a role’s and a database’s limit of connections, and a full server', async () => {
    await db.query(`CREATE ROLE narrow_${db.name} LOGIN PASSWORD 'sesame' CONNECTION LIMIT 0;
      GRANT CONNECT ON DATABASE ${db.name} TO PUBLIC`);
    const narrow = changed((url) => ([url.username, url.password] = [`narrow_${db.name}`, 'sesame']));
    expectCure(await failureOf(targetOf(narrow)), CannotConnect, /53300.*CONNECTION LIMIT of the role/);
    await db.query(
      `ALTER ROLE narrow_${db.name} CONNECTION LIMIT 5; ALTER DATABASE ${db.name} CONNECTION LIMIT 0`,
    );
    expectCure(await failureOf(targetOf(narrow)), CannotConnect, /53300.*CONNECTION LIMIT of the database/);
    await db.query(`ALTER DATABASE ${db.name} CONNECTION LIMIT -1; ALTER ROLE narrow_${db.name} NOLOGIN`);
    expectCure(await failureOf(targetOf(narrow)), AccessRefused, /28000.*may LOGIN/);
    await db.query(`ALTER ROLE narrow_${db.name} LOGIN; REVOKE CONNECT ON DATABASE ${db.name} FROM public`);
    expectCure(await failureOf(targetOf(narrow)), AccessRefused, /42501.*CONNECT to this database/);
    await db.query(`DROP ROLE narrow_${db.name}`);
  });
});

describe('an address that leads nowhere', () => {
  it('a host that can’t be resolved', async () => {
    const words =
      /\(getaddrinfo \w+ .*no-such-host\.invalid\).*name cannot be resolved; check the host in DATABASE_URL/;
    expectCure(
      await failureOf(targetOf('postgres://u:sesame@no-such-host.invalid/db')),
      CannotConnect,
      words,
    );
    expectCure(
      await failureOf(targetOf('postgres://u:sesame@no-such-host.invalid/db', 'neon')),
      CannotConnect,
      words,
    );
    const relayed = targetOf(at(1), 'neon', 'no-such-host.invalid/v1?address=');
    expectCure(await failureOf(relayed), CannotConnect, /cannot be resolved.*CRONCE_NEON_RELAY/);
  });

  it('a WebSocket that keeps its reason to itself', async () => {
    const own = globalThis.WebSocket;
    class Silent extends EventTarget {
      constructor() {
        super();
        setImmediate(() => this.dispatchEvent(new Event('error')));
      }
      close() {
        return undefined;
      }
    }
    globalThis.WebSocket = Silent as unknown as typeof WebSocket;
    try {
      const error = await failureOf(targetOf('postgres://u:sesame@no-such-host.invalid/db', 'neon'));
      expectCure(error, CannotConnect, /cannot be resolved/);
    } finally {
      globalThis.WebSocket = own;
    }
  });

  it('a port where nothing listens', async () => {
    expectCure(
      await failureOf(targetOf(at(1))),
      CannotConnect,
      /ECONNREFUSED.*nothing listens there.*DATABASE_URL/,
    );
    expectCure(
      await failureOf(targetOf(at(1), 'neon', '127.0.0.1:1/v1?address=')),
      CannotConnect,
      /nothing listens there.*CRONCE_NEON_RELAY/,
    );
  });

  it('a Unix socket that isn’t there', async () => {
    const url = `postgres://u:sesame@/db?host=${folder.path}`;
    expectCure(await failureOf(targetOf(url)), CannotConnect, /ENOENT.*folder and port/);
  });

  it.each([
    ['', /what listens there is no PostgreSQL; check host and port in DATABASE_URL/],
    ['?sslmode=require', /what listens there is no PostgreSQL/],
  ])('a web server at that port%s', async (query, words) => {
    const { port, close } = await listen(createHttpServer());
    expectCure(await failureOf(targetOf(at(port, query))), CannotConnect, words);
    close();
  });

  it('a server that speaks first, of another kind', async () => {
    for (const greeting of ['SSH-2.0-OpenSSH_9.6\r\n', '220 mail ESMTP\r\n', 'J\0\0\0\n8.0.36\0']) {
      const { port, close } = await listen(createServer((socket) => socket.end(greeting)));
      for (const query of ['', '?sslmode=require'])
        expectCure(await failureOf(targetOf(at(port, query))), CannotConnect, /is no PostgreSQL/);
      close();
    }
  });

  it('a server that hangs up without a word', async () => {
    const { port, close } = await listen(createServer((socket) => socket.end()));
    expectCure(
      await failureOf(targetOf(at(port))),
      CannotConnect,
      /if it takes only TLS, add sslmode=verify-full/,
    );
    close();
  });
});

describe('every step to the first answer is bounded', () => {
  /** Answers the upgrade to a WebSocket and says nothing more, or says nothing at all. */
  const deaf = (upgrades: boolean) =>
    createServer((socket) => {
      socket.once('data', (request: Buffer) => {
        if (!upgrades) return;
        const key = /Sec-WebSocket-Key: (.*)\r\n/i.exec(request.toString())?.[1] ?? '';
        void accept(key).then((answer) =>
          socket.write(
            `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${answer}\r\n\r\n`,
          ),
        );
      });
    });
  const accept = async (key: string) => {
    const { createHash } = await import('node:crypto');
    return createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64');
  };

  it.each<[string, boolean, (port: number) => Omit<Target, 'connectTimeoutMs'>]>([
    ['a server that accepts', false, (port) => ({ url: at(port), driver: 'pg' })],
    [
      'a server that never answers for TLS',
      false,
      (port) => ({ url: at(port, '?sslmode=require'), driver: 'pg' }),
    ],
    [
      'a relay that accepts',
      false,
      (port) => ({ url: at(1), driver: 'neon', relay: `127.0.0.1:${port}/v1?a=` }),
    ],
    [
      'a relay that upgrades',
      true,
      (port) => ({ url: at(1), driver: 'neon', relay: `127.0.0.1:${port}/v1?a=` }),
    ],
  ])('%s, and then says nothing', async (_what, upgrades, targetAt) => {
    const { port, close } = await listen(deaf(upgrades));
    for (const [connectTimeoutMs, timeoutMs] of [
      [200, undefined],
      [10_000, 200],
      [10_000, -5],
    ] as const) {
      const startedAt = performance.now();
      const target = { ...targetAt(port), connectTimeoutMs };
      const error = await failureOf(target, timeoutMs === undefined ? {} : { timeoutMs });
      expectCure(error, CannotConnect, /no answer within (200|0) ms.*out of reach; check host and port/);
      expect(performance.now() - startedAt).toBeLessThan(5_000);
    }
    close();
  });

  it('also where the password goes ahead, whatever limit the first message has', async () => {
    const { port, close } = await listen(deaf(true));
    const own = globalThis.WebSocket;
    const { WebSocket: Real } = await import('ws');
    class Redirected extends Real {
      constructor() {
        super(`ws://127.0.0.1:${port}`);
      }
    }
    globalThis.WebSocket = Redirected as unknown as typeof WebSocket;
    try {
      const target = {
        url: 'postgres://u:sesame@ep-x.neon.tech/db',
        driver: 'neon',
        connectTimeoutMs: 10_000,
      } as const;
      const startedAt = performance.now();
      const session = await Session.open(target, { timeoutMs: 300 });
      const error = await session
        .send('SELECT 1', 60_000)
        .catch((thrown: unknown) => thrown as PostgresError);
      expectCure(error as PostgresError, CannotConnect, /no answer within 300 ms/);
      expect(performance.now() - startedAt).toBeLessThan(5_000);
    } finally {
      globalThis.WebSocket = own;
      close();
    }
  });
});

const hasOpenssl = await run('openssl', ['version']).then(
  () => true,
  () => false,
);
if (!hasOpenssl) console.log('openssl is not installed: the tests of TLS are skipped');

/** A server with a CA of its own; it takes some users only with TLS, and some only without. */
describe('how the server lets us in', () => {
  let server: LocalPostgres;
  let relay: Relay;
  const file = (name: string) => path.join(folder.path, name);
  const openssl = async (...args: string[]) => run('openssl', args, { cwd: folder.path });
  const request = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  const certificate = async (name: string, host: string, ...times: string[]) => {
    await openssl('req', ...request, '-keyout', `${name}.key`, '-out', `${name}.csr`, '-subj', `/CN=${name}`);
    await writeFile(file(`${name}.ext`), `subjectAltName=${host}`);
    const signing = ['-CA', 'ca.crt', '-CAkey', 'ca.key', '-CAcreateserial', '-extfile', `${name}.ext`];
    await openssl('x509', '-req', '-in', `${name}.csr`, ...signing, ...times, '-out', `${name}.crt`);
  };
  const admin = async (...statements: string[]) => {
    const client = new pg.Client({ connectionString: server.url, ssl: false });
    await client.connect();
    for (const statement of statements) await client.query(statement);
    await client.end();
  };
  /** The server reads it from files of its own. */
  const present = async (name: string) => {
    const { uid, gid } = await stat(path.join(server.dataDir, 'PG_VERSION'));
    for (const kind of ['crt', 'key']) {
      const to = path.join(server.dataDir, `server.${kind}`);
      await writeFile(to, await readFile(file(`${name}.${kind}`)), { mode: 0o600 });
      await chmod(to, 0o600);
      await chown(to, uid, gid);
    }
    await admin(`ALTER SYSTEM SET ssl = on`, `SELECT pg_reload_conf()`);
    const startedAt = performance.now();
    const seen = async () => {
      const { stdout } = await run('sh', [
        '-c',
        `echo | openssl s_client -starttls postgres -connect 127.0.0.1:${server.port} 2>/dev/null | openssl x509 -noout -subject || true`,
      ]);
      return stdout.trim();
    };
    await expect
      .poll(seen, { timeout: 10_000 - (performance.now() - startedAt) })
      .toMatch(new RegExp(`= ?${name}$`));
  };
  const url = (user: string, query = '', host = '127.0.0.1') =>
    `postgres://${user}:sesame%3Dopen@${host}:${server.port}/postgres${query}`;
  const withCa = (mode = 'verify-full') => `?sslmode=${mode}&sslrootcert=${file('ca.crt')}`;

  beforeAll(async () => {
    server = await startPostgres({ dataDir: file('tls') });
    const users = ['encrypted', 'plain', 'scram', 'md5', 'clear', 'trusted'];
    const rules = [
      'hostssl all encrypted 127.0.0.1/32 scram-sha-256',
      'hostnossl all plain 127.0.0.1/32 scram-sha-256',
      'host all scram 127.0.0.1/32 scram-sha-256',
      'host all md5 127.0.0.1/32 md5',
      'host all clear 127.0.0.1/32 password',
      'host all trusted 127.0.0.1/32 trust',
      'host all postgres 127.0.0.1/32 password',
    ];
    await writeFile(path.join(server.dataDir, 'pg_hba.conf'), `${rules.join('\n')}\n`);
    await admin(
      ...users.flatMap((user) => [
        `SET password_encryption = '${user === 'md5' ? 'md5' : 'scram-sha-256'}'`,
        `CREATE ROLE ${user} LOGIN PASSWORD 'sesame=open'`,
      ]),
      'SELECT pg_reload_conf()',
    );
    relay = await startRelay({ allow: [`127.0.0.1:${server.port}`] });
  });
  afterAll(async () => {
    await relay.stop();
    await server.stop();
  });
  const relayed = (user: string) => targetOf(url(user), 'neon', relay.wsProxy);

  it.each(['scram', 'md5', 'clear', 'trusted'])('by %s, with both drivers', async (user) => {
    await works(targetOf(url(user)));
    await works(relayed(user));
  });

  it.each(['scram', 'md5', 'clear'])('not with a wrong password or none, by %s', async (user) => {
    for (const [from, words] of [
      ['sesame-shut', /28P01.*check user and password/],
      ['', /asks for a password, and none is given/],
    ] as const)
      for (const target of [targetOf(url(user)), relayed(user)]) {
        const wrong = { ...target, url: target.url.replace('sesame%3Dopen', from) };
        expectCure(await failureOf(wrong), AccessRefused, words);
      }
  });

  let lag: Lag;
  beforeAll(async () => {
    lag = await startLag({ target: server.port, ms: 2 });
    await admin('CREATE TABLE read (words text)', 'GRANT ALL ON read TO PUBLIC');
  });
  afterAll(async () => lag.stop());
  const flights = async (use: () => Promise<unknown>) => {
    const before = await lag.roundTrips();
    await use();
    return (await lag.roundTrips()) - before;
  };
  /** How many round trips it saves not to open first. */
  const saved = async (target: Target) => {
    const greet = async (opening: Promise<Session>) => {
      const session = await opening;
      await session.send('SELECT 1');
      session.destroy(new ConnectionLost('enough'));
    };
    const opened = await flights(async () => greet(Session.open(target)));
    return opened - (await flights(async () => greet(Session.atFirstMessage(target))));
  };
  const far = (user: string, query = '') => targetOf(through(url(user, query), lag));

  describe('a first message', () => {
    it.each([
      ['clear', 1],
      ['md5', 1],
      ['scram', 0], // the server has not proved who it is
      ['trusted', 0], // there is no flight of a password
    ])('leaves in one flight with the password: %s', async (user, flight) => {
      expect(await saved(far(user))).toBe(flight);
      const overRelay = await startRelay({ allow: [`127.0.0.1:${lag.port}`] });
      expect(await saved(targetOf(through(url(user), lag), 'neon', overRelay.wsProxy))).toBe(flight);
      await overRelay.stop();
    });

    it('is read by a server that lets us in, once, and by none that refuses us', async () => {
      const say = (words: string) => `INSERT INTO read VALUES ('${words}')`;
      for (const user of ['clear', 'md5', 'scram', 'trusted'])
        for (const target of [targetOf(url(user)), relayed(user)]) {
          const words = `${user} ${target.driver}`;
          const session = await Session.atFirstMessage(target);
          await session.send(say(words));
          await session.close();
          const wrong = { ...target, url: target.url.replace('sesame%3Dopen', 'sesame-shut') };
          if (user === 'trusted') wrong.url = wrong.url.replace('/postgres', '/nowhere');
          const refused = (await Session.atFirstMessage(wrong)).send(say(`${words} refused`));
          await expect(refused).rejects.toThrow(AccessRefused);
        }
      const reader = await Session.open(targetOf(server.url));
      const { rows } = await reader.query('SELECT words FROM read ORDER BY 1');
      await reader.close();
      const all = ['clear', 'md5', 'scram', 'trusted'].flatMap((user) => [`${user} neon`, `${user} pg`]);
      expect(rows.map((row) => String((row as { words: unknown }).words))).toEqual(all);
    });

    it('that the server refuses is a statement’s error, and the session lives', async () => {
      for (const target of [targetOf(url('clear')), relayed('clear'), targetOf(url('trusted'))]) {
        const session = await Session.atFirstMessage(target);
        await expect(session.send('SELECT 1; SELECT 1/0; SELECT 2')).rejects.toMatchObject({ code: '22012' });
        expect((await session.send('SELECT 3 AS n')).at(-1)?.rows).toEqual([{ n: 3 }]);
        await session.close();
      }
    });

    it('with parameters waits until it is asked for', async () => {
      for (const target of [targetOf(url('clear')), relayed('clear')]) {
        const session = await Session.atFirstMessage(target);
        expect((await session.query('SELECT $1::int AS n', [7])).rows).toEqual([{ n: 7 }]);
        await session.close();
      }
    });

    it('counts as sent when it left, and has its own time besides that of connecting', async () => {
      const slow = await startLag({ target: server.port, ms: 100 });
      const target = { ...targetOf(through(url('clear'), slow)), connectTimeoutMs: 20_000 };
      const session = await Session.atFirstMessage(target);
      const startedAt = performance.now();
      await session.send('SELECT pg_sleep(0.3)', 10_000);
      const since = elapsedMs(session.answeredMessageSentAt);
      expect(since, 'a round trip before the server began').toBeGreaterThanOrEqual(300 + 190);
      expect(since).toBeLessThan(performance.now() - startedAt);
      await session.close();
      await slow.stop();
      const late = await Session.atFirstMessage(targetOf(url('clear')));
      await expect(late.send('SELECT pg_sleep(9)', 300)).rejects.toMatchObject({ name: 'ConnectionLost', message: 'no answer within 300 ms' }); // prettier-ignore
      await admin(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(9)%' AND pid <> pg_backend_pid()`); // prettier-ignore
    });

    it('that is never sent leaves nothing behind', async () => {
      const session = await Session.atFirstMessage(targetOf(url('clear')));
      await session.close();
      await expect(session.send('SELECT 1')).rejects.toThrow(ConnectionLost);
    });
  });

  it('says that the server has no TLS', async () => {
    for (const mode of ['require', 'verify-full', 'no-verify'])
      expectCure(
        await failureOf(targetOf(url('scram', `?sslmode=${mode}`))),
        CannotConnect,
        /has no TLS; take sslmode out/,
      );
  });

  it('says which rule is missing, where TLS is not it', async () => {
    expectCure(
      await failureOf(targetOf(url('stranger'))),
      AccessRefused,
      /28000.*refuses us by rule; add sslmode/,
    );
    expectCure(
      await failureOf(relayed('stranger')),
      AccessRefused,
      /28000.*by rule; have this host, user and database/,
    );
  });

  describe.runIf(hasOpenssl)('with TLS', () => {
    beforeAll(async () => {
      await openssl(
        'req',
        '-x509',
        ...request,
        '-keyout',
        'ca.key',
        '-out',
        'ca.crt',
        '-subj',
        '/CN=our CA',
        '-days',
        '9',
      );
      await openssl(
        'req',
        '-x509',
        ...request,
        '-keyout',
        'alone.key',
        '-out',
        'alone.crt',
        '-subj',
        '/CN=alone',
        '-days',
        '9',
      );
      await certificate('right', 'IP:127.0.0.1,DNS:localhost', '-days', '9');
      await certificate('elsewhere', 'DNS:db.example.com', '-days', '9');
      await certificate('expired', 'IP:127.0.0.1', '-days', '-1');
    });

    it('a private CA, named by sslrootcert', async () => {
      await present('right');
      for (const mode of ['verify-full', 'require', 'prefer', 'verify-ca'])
        await works(targetOf(url('encrypted', withCa(mode))));
      await works(targetOf(url('encrypted', withCa(), 'localhost')));
      await works(targetOf(url('encrypted', '?sslmode=no-verify')));
      await works(targetOf(url('encrypted', '?sslmode=require&uselibpqcompat=true')));
    });

    it('a first message leaves with SCRAM’s last word, where a certificate has shown whose server it is', async () => {
      expect(await saved(far('scram', withCa()))).toBe(1);
      expect(await saved(far('scram', '?sslmode=no-verify'))).toBe(0);
    });

    it('a private CA, named by NODE_EXTRA_CA_CERTS', async () => {
      const script =
        `import { Session } from ${JSON.stringify(path.resolve('src/postgres/session.ts'))};` +
        `const session = await Session.open({ url: process.env.URL, driver: 'pg', connectTimeoutMs: 20000 });` +
        `console.log((await session.query('SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()')).rows[0].ssl);` +
        `await session.close();`;
      const env = {
        ...process.env,
        URL: url('encrypted', '?sslmode=require'),
        NODE_EXTRA_CA_CERTS: file('ca.crt'),
      };
      await writeFile(file('script.mts'), script);
      const { stdout, stderr } = await run(
        process.execPath,
        ['--import', import.meta.resolve('tsx'), file('script.mts')],
        {
          env,
        },
      );
      expect({ stdout, stderr }).toEqual({ stdout: 'true\n', stderr: '' });
    });

    it('a server that takes only TLS, and a URL that asks for none', async () => {
      expectCure(
        await failureOf(targetOf(url('encrypted'))),
        AccessRefused,
        /28000.*by rule; add sslmode=verify-full to DATABASE_URL/,
      );
      expectCure(
        await failureOf(targetOf(url('plain', withCa()))),
        AccessRefused,
        /28000.*by rule; have this host, user and database allowed/,
      );
    });

    const unknown =
      /its certificate comes from a CA that is not known here; .*sslrootcert.*NODE_EXTRA_CA_CERTS/;
    it.each<[string, string, RegExp, string?]>([
      ['a CA that isn’t known', 'right', unknown, '?sslmode=require'],
      ['a certificate that signed itself', 'alone', unknown],
      [
        'a certificate for another host',
        'elsewhere',
        /certificate is for another host; give DATABASE_URL a host name/,
      ],
      ['a certificate that has expired', 'expired', /certificate has expired; renew it/],
    ])('%s', async (_what, name, words, query = withCa()) => {
      await present(name);
      expectCure(await failureOf(targetOf(url('encrypted', query))), CannotConnect, words);
    });

    it('a file of a CA that isn’t there, handed to a session', async () => {
      const error = await failureOf(targetOf(url('encrypted', '?sslmode=require&sslrootcert=/nowhere.pem')));
      expectCure(error, CannotConnect, /DATABASE_URL cannot be used \(.*nowhere\.pem/);
    });
  });
});
