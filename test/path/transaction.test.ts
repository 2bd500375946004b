import { setTimeout as delay } from 'node:timers/promises';
import { eq, sql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/node-postgres';
import { integer, pgTable, text } from 'drizzle-orm/pg-core';
import { Kysely, PostgresDialect, type Generated } from 'kysely';
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, expectTypeOf, it } from 'vitest';
import { startRelay, type Relay } from '../../infra/local/relay.ts';
import { coordinate, type Coordinator } from '../../src/coordinate.ts';
import { defineJob, type Transaction, type WorkContext } from '../../src/job.ts';
import { read } from '../../src/path/statement.ts';
import { coordinatorOn, deliveryFor, keepingLogger, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { openPublic } from '../support/bed.ts';

const noon = '2026-11-29T12:00:00Z';
const note = pgTable('note', { id: integer().generatedAlwaysAsIdentity(), word: text().notNull() });
interface Tables {
  note: { id: Generated<number>; word: string };
}

let db: TestDatabase;
let relay: Relay;
let jobs = 0;

beforeAll(async () => {
  db = await freshDatabase();
  await db.query(openPublic(db.name));
  relay = await startRelay({ allow: [new URL(db.url).host] });
  await db.query(`CREATE TABLE note (id int GENERATED ALWAYS AS IDENTITY, word text NOT NULL);
    CREATE PROCEDURE commits() LANGUAGE plpgsql AS 'BEGIN COMMIT; END'`);
});
beforeEach(async () => {
  await db.query('TRUNCATE note');
});
afterAll(async () => {
  await relay.stop();
  await db.drop();
});

const words = async () => (await db.query('SELECT word FROM note ORDER BY id')).map(({ word }) => word);
const kyselyOn = (tx: Transaction) => new Kysely<Tables>({ dialect: new PostgresDialect({ pool: tx }) });
const insert = async (on: { query: pg.ClientBase['query'] }, word: string) =>
  on.query('INSERT INTO note (word) VALUES ($1)', [word]);

const drivers: [string, () => Partial<Coordinator>][] = [
  ['pg', () => ({ target: targetOf(db.url) })],
  ['neon', () => ({ target: targetOf(db.url, 'neon', relay.wsProxy) })],
];

it('is taken by the builders without a cast, and refuses what it does not do by its type', () => {
  const typed = (tx: Transaction, cursor: pg.Submittable) => {
    expectTypeOf(drizzle(tx).$client).toEqualTypeOf<Transaction>();
    expectTypeOf(drizzle({ client: tx }).$client).toEqualTypeOf<Transaction>();
    expectTypeOf(kyselyOn(tx)).toEqualTypeOf<Kysely<Tables>>();
    expectTypeOf(tx.query<{ n: number }>('')).resolves.toEqualTypeOf<pg.QueryResult<{ n: number }>>();
    // @ts-expect-error -- a cursor or stream
    void tx.query(cursor);
  };
  expect(typed).toBeTypeOf('function');
});

describe.each(drivers)('by %s', (_driver, override) => {
  const runWith = async (work: (context: WorkContext) => Promise<unknown>, timeoutMs = 20_000) => {
    const logger = keepingLogger();
    const job = defineJob({ name: `job-${++jobs}`, timeoutMs, work });
    const run = await coordinate(
      deliveryFor(job, noon),
      60_000,
      coordinatorOn(db.url, { ...override(), logger }),
    );
    return { run, warnings: logger.lines.filter(({ level }) => level === 'warn') };
  };
  const run = async (work: (context: WorkContext) => Promise<unknown>, timeoutMs?: number) =>
    (await runWith(work, timeoutMs)).run;

  describe('transactions of builders are savepoints', () => {
    it('of Drizzle: kept, undone, nested, nested and undone', async () => {
      const done = await run(async ({ tx }) => {
        const orm = drizzle(tx);
        await orm.transaction(async (outer) => {
          await outer.insert(note).values({ word: 'kept' });
          await outer.transaction(async (inner) => inner.insert(note).values({ word: 'nested' }));
          await outer
            .transaction(async (inner) => {
              await inner.insert(note).values({ word: 'nested, undone' });
              inner.rollback();
            })
            .catch(() => undefined);
          await outer.insert(note).values({ word: 'after' });
        });
        await expect(
          orm.transaction(async (undone) => {
            await undone.insert(note).values({ word: 'undone' });
            await undone.execute(sql`SELECT 1/0`);
          }),
        ).rejects.toThrow();
        return (await orm.select().from(note).where(eq(note.word, 'kept'))).length;
      });
      expect(done).toMatchObject({ status: 'succeeded', output: 1 });
      expect(await words()).toEqual(['kept', 'nested', 'after']);
    });

    it('of Kysely: kept, undone, nested by its savepoints; destroy does nothing', async () => {
      const done = await run(async ({ tx }) => {
        const kysely = kyselyOn(tx);
        const add = async (on: Kysely<Tables>, word: string) =>
          on.insertInto('note').values({ word }).execute();
        try {
          await kysely.transaction().execute(async (trx) => add(trx, 'kept'));
          await expect(
            kysely.transaction().execute(async (trx) => {
              await add(trx, 'undone');
              throw new Error('no');
            }),
          ).rejects.toThrow('no');
          const trx = await kysely.startTransaction().execute();
          const saved = await trx.savepoint('Sp 1').execute();
          await add(saved, 'undone too');
          await saved.rollbackToSavepoint('Sp 1').execute();
          await add(saved, 'nested');
          await saved.releaseSavepoint('Sp 1').execute();
          await trx.commit().execute();
        } finally {
          await kysely.destroy();
        }
        await tx.query('SELECT 1');
      });
      expect(done).toMatchObject({ status: 'succeeded' });
      expect(await words()).toEqual(['kept', 'nested']);
    });

    it.each(['serializable', 'repeatable read', 'read uncommitted'] as const)('not as %s', async (level) => {
      const drizzled = await run(async ({ tx }) =>
        drizzle(tx).transaction(async () => 1, { isolationLevel: level }),
      );
      expect(drizzled.error).toMatchObject({ cause: { name: 'ForbiddenStatement' } });
      const kyselied = await run(async ({ tx }) =>
        kyselyOn(tx)
          .transaction()
          .setIsolationLevel(level)
          .execute(async () => 1),
      );
      expect(kyselied.error).toMatchObject({ name: 'ForbiddenStatement' });
      expect(kyselied.error?.message.toLowerCase()).toContain(level);
    });

    it('keeps parallel ones apart, of two builders and of statements beside them', async () => {
      const done = await run(async ({ tx }) => {
        const [orm, kysely] = [drizzle(tx), kyselyOn(tx)];
        const settled = await Promise.allSettled([
          orm.transaction(async (trx) => {
            await trx.insert(note).values({ word: 'undone' });
            await delay(50);
            throw new Error('no');
          }),
          orm.transaction(async (trx) => trx.insert(note).values({ word: 'drizzle' })),
          kysely.transaction().execute(async (trx) => {
            await trx.insertInto('note').values({ word: 'kysely' }).execute();
            await delay(50);
          }),
          kysely.insertInto('note').values({ word: 'kysely beside' }).execute(),
          insert(tx, 'beside'),
        ]);
        return settled.map(({ status }) => status === 'fulfilled');
      });
      expect(done).toMatchObject({ output: [false, true, true, true, true] });
      expect((await words()).sort()).toEqual(['beside', 'drizzle', 'kysely', 'kysely beside']);
    });

    it('says so where a transaction waits for what waits for it', async () => {
      const done = await run(async ({ tx }) =>
        drizzle(tx).transaction(async () => insert(tx, 'from outside')),
      );
      expect(done).toMatchObject({ status: 'failed', error: { name: 'ForbiddenStatement' } });
      expect(done.error?.message).toContain('use the handle');
    });

    it('lets a BEGIN on tx itself, nested too, be everyone’s', async () => {
      const done = await run(async ({ tx }) => {
        const tags: string[] = [];
        const say = async (statement: string) => tags.push((await tx.query(statement)).command);
        await say('BEGIN');
        await kyselyOn(tx).insertInto('note').values({ word: 'kept' }).execute();
        await say('START TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE');
        await insert(tx, 'undone');
        await expect(tx.query('SELECT 1/0')).rejects.toThrow();
        await expect(tx.query('COMMIT')).rejects.toMatchObject({ code: '25P02' });
        await say('ABORT WORK');
        await say('/* nested /* comments */ */ END TRANSACTION');
        await expect(tx.query('COMMIT')).rejects.toThrow('returning from the work commits');
        return tags;
      });
      expect(done).toMatchObject({ output: ['BEGIN', 'BEGIN', 'ROLLBACK', 'COMMIT'] });
      expect(await words()).toEqual(['kept']);
    });

    it('fails work that returns while one is open: half of it would be committed', async () => {
      const done = await run(async ({ tx }) => {
        void drizzle(tx)
          .transaction(async (trx) => {
            await trx.insert(note).values({ word: 'half' });
            await delay(400);
            await trx.insert(note).values({ word: 'whole' });
          })
          .catch(() => undefined);
      });
      expect(done).toMatchObject({ status: 'failed', error: { name: 'TransactionLeftOpen' } });
      expect(await words()).toEqual([]);
    });

    it('keeps savepoints by hand within their own transaction', async () => {
      const done = await run(async ({ tx }) => {
        const client = await tx.connect();
        await tx.query('SAVEPOINT outer_one');
        await client.query('BEGIN');
        for (const crossing of ['ROLLBACK TO outer_one', 'RELEASE "outer_one"', 'ROLLBACK TO nowhere'])
          await expect(client.query(crossing)).rejects.toThrow('no savepoint');
        await insert(client, 'kept');
        await client.query('COMMIT');
        client.release();
        await insert(tx, 'undone');
        await tx.query('rollback transaction to savepoint OUTER_ONE');
        await insert(tx, 'after');
        await tx.query('RELEASE SAVEPOINT outer_one');
      });
      expect(done).toMatchObject({ status: 'succeeded' });
      expect(await words()).toEqual(['after']);
    });
  });

  it('looks like a pool whose lifetime is not the job’s', async () => {
    const done = await run(async ({ tx }) => {
      tx.on('error', () => undefined).off('error', () => undefined);
      tx.removeListener('error', () => undefined).once('connect', () => undefined);
      const client = await tx.connect();
      client.on('error', () => undefined).removeAllListeners('error');
      client.release(true);
      await client.end();
      await tx.end();
      await drizzle(tx).$client.end();
      return new Promise((resolve) => {
        tx.query('SELECT $1::int AS n', [3], (_error, result) => {
          resolve(result.rows);
        });
      });
    });
    expect(done).toMatchObject({ status: 'succeeded', output: [{ n: 3 }] });
  });

  it('sends a named statement without its name, and of a query only what it was looked at for', async () => {
    const done = await run(async ({ tx, fenced }) => {
      const named = { name: 'load', text: 'SELECT $1::int AS n', values: [1] };
      const twoFaced = () => {
        let reads = 0;
        return {
          get text() {
            return reads++ === 0 ? 'SELECT 1 AS n' : 'COMMIT';
          },
        };
      };
      const held = async (on: Transaction) => [
        (await on.query(named)).rows,
        (await on.query({ ...named, text: 'SELECT $1::text AS n' }, ['other'])).rows,
        (await on.query(twoFaced())).rows.length,
        (await on.query('SELECT count(*)::int AS n FROM pg_prepared_statements')).rows,
      ];
      return [await held(tx), (await fenced(held))[3]];
    });
    expect(done.error).toBeNull();
    expect(done).toMatchObject({
      status: 'succeeded',
      output: [[[{ n: 1 }], [{ n: 'other' }], 1, [{ n: 0 }]], [{ n: 0 }]],
    });
  });

  it.each([
    'SET LOCAL ROLE NONE',
    `SET LOCAL statement_timeout = '1s'`,
    'SET LOCAL search_path = pg_catalog',
    `SET LOCAL lock_timeout = '1s'`,
    'SET LOCAL default_transaction_read_only = on',
    'SET LOCAL idle_in_transaction_session_timeout = 0',
    'set /* … */ local datestyle = german',
    'SET CONSTRAINTS ALL DEFERRED',
    'SET TRANSACTION READ WRITE',
    'DECLARE c CURSOR FOR SELECT 1',
    'NOTIFY somebody',
    '(SELECT 1)',
    '/* a /* b */ c */ SELECT 1',
    'WITH x AS (SELECT 1) SELECT * FROM x',
    '',
  ])('allows %j', async (statement) => {
    const done = await run(async ({ tx }) => {
      await tx.query('SAVEPOINT back');
      await tx.query(statement);
      await tx.query('ROLLBACK TO back');
    });
    expect(done).toMatchObject({ status: 'succeeded' });
  });

  it('refuses cursors and streams, and what is no statement at all', async () => {
    const done = await run(async ({ tx }) => {
      for (const odd of [{ submit: () => undefined }, undefined, 7])
        await expect(tx.query(odd as unknown as string)).rejects.toMatchObject({
          name: 'ForbiddenStatement',
        });
    });
    expect(done).toMatchObject({ status: 'succeeded' });
  });

  it.each(['DO $$ BEGIN COMMIT; END $$', 'CALL commits()'])('has the server refuse %j', async (statement) => {
    expect(await run(async ({ tx }) => tx.query(statement))).toMatchObject({
      status: 'failed',
      error: { code: '2D000' },
    });
  });

  describe('a statement that nobody awaited', () => {
    it.each([
      ['an SQL error', 'SELECT 1/0', { code: '22012' }],
      ['a refusal', 'COMMIT', { name: 'ForbiddenStatement' }],
    ])('fails the run by %s', async (_what, statement, error) => {
      const done = await run(async ({ tx }) => {
        await insert(tx, 'gone');
        void tx.query(statement);
      });
      expect(done).toMatchObject({ status: 'failed', error });
      expect(await words()).toEqual([]);
    });

    it('is waited for, with those that follow it', async () => {
      const done = await run(async ({ tx }) => {
        void (async () => {
          await tx.query('SELECT pg_sleep(0.2)');
          await insert(tx, 'late');
        })();
      });
      expect(done).toMatchObject({ status: 'succeeded' });
      expect(await words()).toEqual(['late']);
    });

    it('is waited for no longer than the run may take', async () => {
      const done = await run(
        async ({ tx }) => void tx.query('SELECT pg_sleep(20)').catch(() => undefined),
        500,
      );
      expect(done).toMatchObject({ status: 'timed_out' });
    });

    it('is waited for in fenced too, and fails it', async () => {
      const done = await run(async ({ fenced }) => {
        await fenced(async (own) => void insert(own, 'late'));
        await fenced(async (own) => void own.query('SELECT 1/0').catch(() => undefined));
      });
      expect(done).toMatchObject({ status: 'failed', error: { code: '22012' } });
      expect(await words()).toEqual(['late']);
    });

    it('is like any other promise: its error fails the run', async () => {
      const done = await run(async ({ tx }) => {
        void Promise.reject(new Error('stray'));
        await insert(tx, 'gone');
      });
      expect(done).toMatchObject({ status: 'failed', error: { message: 'stray' } });
      expect(await words()).toEqual([]);
    });

    it('tells the first SQL error where a later one hides it, and none that was rolled back', async () => {
      const swallowed = await run(async ({ tx }) => {
        await tx.query('SELECT 1/0').catch(() => undefined);
        await tx.query('SELECT 2').catch(() => undefined);
      });
      expect(swallowed).toMatchObject({ status: 'failed', error: { code: '22012' } });
      const undone = await run(async ({ tx }) => {
        await tx.query('SAVEPOINT a');
        await tx.query('SELECT 1/0').catch(() => undefined);
        await tx.query('ROLLBACK TO a');
      });
      expect(undone).toMatchObject({ status: 'succeeded' });
    });
  });

  describe('what would leak to others behind a pooler is undone and said', () => {
    it.each<[string, string, unknown[], string]>([
      ['a session lock', 'SELECT pg_advisory_lock(4711)', [], 'advisory locks'],
      ['a tried one', 'SELECT pg_try_advisory_lock_shared(1, 2)', [], 'advisory locks'],
      ['one in a block', 'DO $$ BEGIN PERFORM pg_advisory_lock(4711); END $$', [], 'advisory locks'],
      ['a setting', `SELECT set_config('work_mem', '77kB', false)`, [], 'work_mem'],
      ['one by parameters', 'SELECT set_config($1, $2, $3)', ['work_mem', '77kB', false], 'work_mem'],
      ['one of the job’s own', `SELECT pg_catalog.set_config('App.tenant', 'x', 1 = 2)`, [], 'App.tenant'],
      ['one in a block', `DO $$ BEGIN SET work_mem = '77kB'; END $$`, [], 'work_mem'],
      ['one of time', `SELECT set_config('statement_timeout', '9s', false)`, [], 'statement_timeout'],
      ['a table', 'CREATE TEMP TABLE scratch (n int)', [], 'temporary tables'],
    ])('%s', async (_what, statement, values, told) => {
      const done = await runWith(async ({ tx }) => {
        await tx.query(statement, values);
        await insert(tx, 'kept');
      });
      expect(done.run).toMatchObject({ status: 'succeeded' });
      expect(done.warnings.map(({ message }) => message)).toEqual([expect.stringContaining(told)]);
      expect(await words()).toEqual(['kept']);
    });

    it('of fenced', async () => {
      const done = await runWith(async ({ fenced }) =>
        fenced(async (own) =>
          own.query(`SELECT pg_advisory_lock(4711), set_config('work_mem', '77kB', false)`),
        ),
      );
      expect(done.warnings.map(({ message }) => message)).toEqual([expect.stringContaining('work_mem')]);
    });

    it('of work that throws', async () => {
      const done = await runWith(async ({ tx }) => {
        await tx.query(`SELECT pg_advisory_lock(4711), set_config('work_mem', '77kB', false)`);
        await tx.query('SELECT 1/0');
      });
      expect(done.run).toMatchObject({ status: 'failed', error: { code: '22012' } });
      expect(done.warnings.map(({ message }) => message)).toEqual([expect.stringMatching(/locks.{0,40}$/)]);
    });

    it('not what ends with the transaction', async () => {
      const done = await runWith(async ({ tx }) => {
        await tx.query(`SELECT set_config('work_mem', '77kB', true)`);
        await tx.query('SELECT set_config($1, $2, $3)', ['work_mem', '77kB', true]);
        await tx.query('SELECT pg_advisory_xact_lock(4711)');
        await tx.query('CREATE TEMP TABLE scratch (n int) ON COMMIT DROP');
        await tx.query(`SELECT 'pg_advisory_lock(1)'`);
      });
      expect(done).toMatchObject({ run: { status: 'succeeded' }, warnings: [] });
    });
  });
});

const refused = [
  'COMMIT AND CHAIN',
  'COMMIT PREPARED $$x$$',
  'ROLLBACK PREPARED $$x$$',
  'ROLLBACK AND CHAIN',
  'PREPARE TRANSACTION $$x$$',
  'PREPARE p AS SELECT 1',
  'EXECUTE p',
  'DEALLOCATE ALL',
  'BEGIN ISOLATION LEVEL SERIALIZABLE',
  'BEGIN TRANSACTION READ ONLY',
  'START TRANSACTION READ WRITE, DEFERRABLE',
  'SET TRANSACTION ISOLATION LEVEL REPEATABLE READ',
  'SET TRANSACTION READ ONLY',
  'SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY',
  `SET x.y = 'set local'`,
  'SET SESSION work_mem = 1',
  'SET ROLE nobody',
  'SET SESSION AUTHORIZATION nobody',
  'SET TIME ZONE 0',
  `SET LOCAL client_encoding = 'LATIN1'`,
  `SET LOCAL NAMES 'LATIN1'`,
  `SELECT set_config('client_encoding', 'LATIN1', true)`,
  'RESET ROLE',
  'RESET ALL',
  'DISCARD ALL',
  'LISTEN somebody',
  'UNLISTEN *',
  `LOAD 'auto_explain'`,
  'COPY note FROM STDIN',
  'DECLARE c CURSOR WITH /**/ HOLD FOR SELECT 1',
  'SAVEPOINT work',
  'savepoint WORK',
  'ROLLBACK TO work',
  'ROLLBACK WORK TO SAVEPOINT "work"',
  'RELEASE Work',
  'RELEASE SAVEPOINT cronce_1',
  'SAVEPOINT U&"w\\006frk"',
  'BEGIN; SELECT 1',
  'COMMIT; SELECT 1',
  ';COMMIT',
  '*/ COMMIT',
];
it.each(refused)('refuses %j', (statement) => {
  expect(() => read(statement)).toThrow(expect.objectContaining({ name: 'ForbiddenStatement' }) as Error);
});

it.each([
  ['COMMIT', 'commit'],
  ['/* /* */ */ COMMIT;', 'commit'],
  ['--\rCOMMIT', 'commit'],
  ['-- COMMIT', 'other'],
  ['END WORK AND NO CHAIN', 'commit'],
  ['abort', 'rollback'],
  ['rollback\tto"Work"', 'rollback to'],
  [`SELECT '/*'; COMMIT --*/`, 'other'],
])('reads %j as %s', (statement, kind) => {
  expect(read(statement)).toMatchObject({ kind });
});
