import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startRelay, type Relay } from '../../infra/local/relay.ts';
import type { DriverName, QueryResult, Target } from '../../src/postgres/driver.ts';
import { ConnectionLost, PostgresError, UnsendableQuery } from '../../src/postgres/errors.ts';
import { elapsedMs } from '../../src/postgres/moment.ts';
import { Session } from '../../src/postgres/session.ts';
import { targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { openPublic } from '../support/bed.ts';
import { startProxy, type Proxy } from '../support/proxy.ts';

let db: TestDatabase;
beforeAll(async () => {
  db = await freshDatabase();
  await db.query(openPublic(db.name));
});
afterAll(async () => db.drop());

const drivers: readonly DriverName[] = ['pg', 'neon'];

describe.each(drivers)('a session of %s', (driver) => {
  let proxy: Proxy;
  let relay: Relay;
  let target: Target;
  beforeAll(async () => {
    proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
    const url = proxy.url(db.url);
    relay = await startRelay({ allow: [new URL(url).host] });
    target = targetOf(url, driver, driver === 'neon' ? relay.wsProxy : undefined);
  });
  afterAll(async () => {
    await relay.stop();
    await proxy.stop();
  });
  const theirs = { theirs: true } as const;
  const failureOf = async (promise: Promise<unknown>) =>
    promise.then(
      () => new Error('it did not fail'),
      (error: unknown) => error as PostgresError & Record<string, unknown>,
    );
  const alive = async (session: Session) =>
    expect((await session.query(`SELECT 1 AS one`)).rows).toEqual([{ one: 1 }]);

  describe('what the driver can’t send', () => {
    const throwing = (thrown: unknown) => ({
      toPostgres() {
        throw thrown;
      },
    });
    const circular: Record<string, unknown> = {};
    circular['self'] = circular;
    const errorOf = (code: string) => Object.assign(new Error(`an error of the client's`), { code });
    const getter = Object.defineProperty([1], 0, {
      get() {
        throw errorOf('EPIPE');
      },
    });
    class Hostile extends Error {
      override get message(): string {
        throw new Error('unreadable');
      }
    }
    it.each<[string, unknown[]]>([
      ['a BigInt in JSON', [{ n: 1n }]],
      ['a circular object', [circular]],
      ['an error with a code of five letters', [throwing(errorOf('EPIPE'))]],
      ['an error with a code of the server’s', [throwing(errorOf('57P01'))]],
      ['an error of ours', [throwing(new ConnectionLost('of another session'))]],
      ['nothing at all, thrown', [throwing(undefined)]],
      ['null, thrown', [throwing(null)]],
      ['a bare object, thrown', [throwing(Object.create(null))]],
      ['an error that can’t be read', [throwing(new Hostile())]],
      ['a getter that throws', getter],
      ['a text with a revoked proxy', [Proxy.revocable({}, {}).proxy, throwing(1)]],
    ])('%s: is no answer, and the session lives', async (_what, values) => {
      const session = await Session.open(target);
      await alive(session);
      const heard = session.answeredMessageSentAt;
      await delay(5);
      for (const options of [theirs, { theirs: true, alone: true }]) {
        const error = await failureOf(session.query('SELECT $1::text', values, options));
        expect(error).toBeInstanceOf(UnsendableQuery);
        expect(session.answeredMessageSentAt).toBe(heard);
      }
      await alive(session);
      expect(session.answeredMessageSentAt.monotonicMs).toBeGreaterThan(heard.monotonicMs);
      await session.close();
    });

    it('an error that the server once gave, thrown again, is no answer', async () => {
      const session = await Session.open(target);
      const old = await failureOf(session.query('SELECT 1/0', [], theirs));
      const heard = session.answeredMessageSentAt;
      await delay(5);
      expect(await failureOf(session.query('SELECT $1', [throwing(old)], theirs))).toBeInstanceOf(
        UnsendableQuery,
      );
      expect(session.answeredMessageSentAt).toBe(heard);
      await session.close();
    });

    it.each<[string, unknown, unknown?]>([
      ['no text', {}],
      ['no query', undefined],
      ['null', null],
      ['a text that is a number', { text: 7 }],
      ['values that are no array', { text: 'SELECT 1', values: 'x' }],
    ])('%s: leaves the next message its own answer', async (_what, query) => {
      const session = await Session.open(target);
      const bad = failureOf(session.query(query as string, undefined, theirs));
      const next = session.query('SELECT 2 AS two');
      expect(await bad).toBeInstanceOf(UnsendableQuery);
      expect((await next).rows).toEqual([{ two: 2 }]);
      await session.close();
    });

    it('is not heard under a partition', async () => {
      const session = await Session.open(target);
      await alive(session);
      const heard = session.answeredMessageSentAt;
      proxy.partition({ newConnections: 'accept' });
      expect(await failureOf(session.query('SELECT $1', [{ n: 1n }], theirs))).toBeInstanceOf(
        UnsendableQuery,
      );
      expect(session.answeredMessageSentAt).toBe(heard);
      session.destroy(new ConnectionLost('given up'));
      await proxy.heal();
    });
  });

  it('keeps a callback, a time limit, a name of a query from the driver', async () => {
    const session = await Session.open(target);
    const odd = { text: 'SELECT pg_sleep(0.05), 3 AS three', name: 'n', query_timeout: 1, callback: () => 0 };
    const { rows } = await session.query(odd, [], theirs);
    expect(rows[0]).toMatchObject({ three: 3 });
    expect(await db.query(`SELECT 1 FROM pg_prepared_statements`)).toEqual([]);
    await session.close();
  });

  it('reads its own results by parsers of its own, and a stranger’s by the driver’s', async () => {
    const session = await Session.open(target);
    const sql = `SELECT to_json('2026-11-29T12:00:00+05:30'::timestamptz AT TIME ZONE 'UTC') AS at, now()::timestamp AS now, '{"a":1}'::jsonb AS json, true AS yes, 7::int8 AS big, 8 AS small`;
    const own = {
      at: '2026-11-29T06:30:00',
      now: expect.any(String) as string,
      json: { a: 1 },
      yes: true,
      big: '7',
      small: 8,
    };
    expect((await session.query(sql)).rows).toEqual([own]);
    expect((await session.send(sql))[0]?.rows).toEqual([own]);
    const { rows } = await session.query(sql, [], theirs);
    expect(rows).toEqual([{ ...own, now: expect.not.stringMatching(/./) as unknown }]); // a Date, if a readable one: DateStyle
    await session.close();
  });

  describe('an error of the server’s', () => {
    const codes = ['57P01', '57P02', '57P03', '57P05', '25P03', '25P04', '53300', '28P01', '08001', '08006'];
    it.each([...codes, '3D000', 'XX000', 'CR002'])(
      '%s raised inside a statement is the statement’s, and the session lives',
      async (code) => {
        const session = await Session.open(target);
        const sql = `DO $$BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '${code}'; END$$`;
        for (const options of [theirs, { theirs: true, alone: true }]) {
          const error = await failureOf(session.query(sql, [], options));
          expect(error).not.toBeInstanceOf(PostgresError);
          expect(error).toMatchObject({ code, severity: 'ERROR', message: 'mine' });
          await alive(session);
        }
        const ours = await failureOf(session.send(sql));
        expect(ours).toBeInstanceOf(PostgresError);
        expect(ours).not.toBeInstanceOf(ConnectionLost);
        await alive(session);
        await session.close();
      },
    );

    it('reaches a stranger with all its fields and none of our cures', async () => {
      const session = await Session.open(target);
      await session.send(`BEGIN; CREATE TABLE person (id int CONSTRAINT adult CHECK (id > 17), mail text UNIQUE);
        INSERT INTO person VALUES (18, 'a'); SAVEPOINT s`);
      const again = async (sql: string, values: unknown[] = []) => {
        const error = await failureOf(session.query(sql, values, theirs));
        await session.send('ROLLBACK TO SAVEPOINT s');
        return error;
      };
      expect(await again(`INSERT INTO person VALUES (18, $1)`, ['a'])).toMatchObject({
        ...{ code: '23505', table: 'person', constraint: 'person_mail_key' },
        detail: 'Key ("mail")=(a) already exists.', // the database quotes all identifiers
      });
      expect(await again('INSERT INTO person VALUES (3)')).toMatchObject({
        constraint: 'adult',
        table: 'person',
      });
      const missing = await again('SELECT nowhere(1)');
      expect(missing).toMatchObject({ code: '42883', position: '8', hint: expect.any(String) as string });
      expect(String(missing)).not.toContain('migrate');
      expect(await again('SELECT male FROM person')).toMatchObject({
        code: '42703',
        hint: expect.stringContaining('mail') as string,
      });
      await session.close();
    });

    it('about a statement of ours has our meaning and cure', async () => {
      const session = await Session.open(target);
      const error = await failureOf(session.send('SELECT cronce.nowhere()'));
      expect(error).toMatchObject({ name: 'SchemaMismatch', code: '42883' });
      expect(error.message).toContain('npm run migrate');
      expect(await failureOf(session.query('SELECT cronce.nowhere()'))).toMatchObject({
        name: 'SchemaMismatch',
      });
      await session.close();
    });

    it('FATAL ends the session, under way or idle', async () => {
      for (const busy of [true, false]) {
        const session = await Session.open(target);
        const { rows } = await session.query('SELECT pg_backend_pid() AS pid');
        const lost = once(session.lost, 'abort');
        const sleeping = busy ? failureOf(session.query('SELECT pg_sleep(20)', [], theirs)) : undefined;
        await db.query(
          `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND ($2 OR state = 'idle')`,
          [(rows[0] as { pid: number }).pid, busy],
        );
        await lost;
        expect(session.lost.reason).toMatchObject({ name: 'ConnectionLost', code: '57P01' });
        if (sleeping) expect(await sleeping).toBeInstanceOf(ConnectionLost);
        expect(await failureOf(session.send('SELECT 1'))).toBeInstanceOf(ConnectionLost);
      }
    });

    it('of our own statement of ours has a limit in any case', async () => {
      const session = await Session.open(target);
      const error = await failureOf(session.query('SELECT pg_sleep(20)', [], { timeoutMs: 100 }));
      expect(error).toMatchObject({ name: 'ConnectionLost', message: 'no answer within 100 ms' });
      await db.query(
        `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(20)%' AND pid <> pg_backend_pid()`,
      );
    });
  });

  describe('farewell', () => {
    it('has its statements run and leaves no backend, 60 times', { timeout: 60_000 }, async () => {
      await db.query('CREATE TABLE IF NOT EXISTS told (driver text, n int)');
      for (let n = 0; n < 60; n++) {
        const session = await Session.open(target);
        const [begun] = (await session.send('SELECT pg_backend_pid() AS pid; BEGIN')) as [QueryResult];
        if (n % 2) session.answeredBy((begun.rows[0] as { pid: number }).pid);
        await session.farewell(`INSERT INTO told VALUES ('${driver}', ${n}); COMMIT`);
        expect(session.lost.aborted).toBe(true);
      }
      const count = async () =>
        (await db.query('SELECT count(*)::int AS n FROM told WHERE driver = $1', [driver]))[0]?.['n'];
      await expect.poll(count, { timeout: 10_000 }).toBe(60);
      await db.assertNoLeaks();
    });

    it.each(['waits a moment', 'leaves'])(
      '%s, and is not broken off where the server looks whether we are there',
      async (how) => {
        const session = await Session.open(target);
        const words = `SET client_connection_check_interval = '20ms'; SELECT pg_backend_pid() AS pid`;
        const pid = ((await session.send(words)).at(-1)?.rows[0] as { pid: number }).pid;
        if (how === 'leaves') session.answeredBy(pid);
        const late = `late_${driver}_${how.slice(0, 5)}`;
        await session.farewell(`CREATE TABLE ${late} AS SELECT 1 AS one FROM pg_sleep(0.2)`);
        const made = async () => db.query(`SELECT to_regclass('${late}') AS made`);
        await expect.poll(made).toEqual([{ made: late }]);
      },
    );

    it('comes behind what is under way, whose sender is told', async () => {
      const session = await Session.open(target);
      const busy = failureOf(session.query('SELECT generate_series(1, 1000) FROM pg_sleep(0.1)', [], theirs));
      const queued = failureOf(session.send('SELECT 1'));
      await delay(20);
      await session.farewell(`CREATE TABLE behind_${driver} ()`);
      expect([await busy, await queued]).toEqual([expect.any(ConnectionLost), expect.any(ConnectionLost)]);
      const made = async () => db.query(`SELECT to_regclass('behind_${driver}') AS made`);
      await expect.poll(made).toEqual([{ made: `behind_${driver}` }]);
    });

    it('does not throw, nor anyone later, whatever the statement or the connection', async () => {
      for (const sql of [
        'SELECT 1/0',
        'no SQL',
        '',
        '\0',
        `RAISE`,
        'COPY pg_class TO STDOUT',
        'COPY pg_class FROM STDIN',
      ]) {
        const session = await Session.open(target);
        await session.farewell(sql);
        await session.farewell('SELECT 1');
        await session.close();
      }
      await db.assertNoLeaks();
    });

    it('takes a quarter of a second at most, also under a partition', async () => {
      const session = await Session.open(target);
      await alive(session);
      proxy.partition({ newConnections: 'accept' });
      const startedAt = performance.now();
      await session.farewell(`SELECT '${'x'.repeat(8_000_000)}'`);
      expect(performance.now() - startedAt).toBeLessThan(1_000);
      await proxy.heal();
    });
  });

  it('closes without waiting for an answer', async () => {
    const session = await Session.open(target);
    await alive(session);
    proxy.stall();
    const startedAt = performance.now();
    await session.close();
    expect(performance.now() - startedAt).toBeLessThan(1_000);
    expect(session.lost.reason).toBeInstanceOf(ConnectionLost);
    proxy.resume();
    await db.assertNoLeaks();
  });

  it('counts from the sending of the answered message', async () => {
    const session = await Session.open(target);
    await session.query('SELECT pg_sleep(0.2)');
    expect(elapsedMs(session.answeredMessageSentAt)).toBeGreaterThanOrEqual(190);
    await session.close();
  });
});

/** A server of few words: lets anyone in, and answers each query by the error that its text names. */
async function tersePostgres() {
  const message = (type: string, ...parts: (string | Buffer)[]) => {
    const body = Buffer.concat(parts.map((part) => Buffer.from(part)));
    const head = Buffer.alloc(5);
    head.write(type);
    head.writeInt32BE(body.length + 4, 1);
    return Buffer.concat([head, body]);
  };
  const ready = message('Z', 'I');
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.once('data', () => {
      socket.write(Buffer.concat([message('R', Buffer.alloc(4)), ready]));
      socket.on('data', (query: Buffer) => {
        const [severity = '', code = '', fate] = query.subarray(5, -1).toString().split(' ');
        socket.write(message('E', `S${severity}\0VX\0C${code}\0Mso it is\0\0`));
        // A turn later, so that the error arrives alone.
        setTimeout(() => (fate === 'ready' ? socket.write(ready) : socket.end()), 50);
      });
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { server, port: (server.address() as AddressInfo).port };
}

describe('a server that speaks another language', () => {
  it.each([
    ['ВАЖНО', 'ends', '57P01', true],
    ['致命的エラー', 'ends', '25P03', true],
    ['ОШИБКА', 'ready', '57P01', false],
    ['FEHLER', 'ready', '08006', false],
  ])('%s: the session %s', async (severity, fate, code, lost) => {
    const { server, port } = await tersePostgres();
    const session = await Session.open(targetOf(`postgres://u:p@127.0.0.1:${port}/db`));
    const error: unknown = await session
      .query(`${severity} ${code} ${fate}`, [], { theirs: true })
      .catch((thrown: unknown) => thrown);
    expect(error).toMatchObject(
      lost ? { name: 'ConnectionLost', code } : { severity, code, message: 'so it is' },
    );
    expect(session.lost.aborted).toBe(lost);
    session.destroy(new ConnectionLost('done'));
    server.close();
  });
});
