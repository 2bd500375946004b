import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cancelRun } from '../../src/path/cancel.ts';
import { coordinate } from '../../src/coordinate.ts';
import { defineJob, type WorkContext } from '../../src/job.ts';
import { AccessRefused } from '../../src/postgres/errors.ts';
import { Session } from '../../src/postgres/session.ts';
import { hasPgbouncer, pgbouncerWay, type Road, type Way } from '../faults/ways.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { openPublic } from '../support/bed.ts';
import { scratchFolder } from '../support/scratch.ts';

const installed = await hasPgbouncer();
if (!installed) console.log('PgBouncer is not installed (apt-get install pgbouncer): its tests are skipped');

/** Transaction mode, a pool of two. */
describe.runIf(installed)('behind PgBouncer', () => {
  let db: TestDatabase;
  let way: Way;
  let road: Road;
  let folder: Awaited<ReturnType<typeof scratchFolder>>;
  beforeAll(async () => {
    db = await freshDatabase();
    await db.query(openPublic(db.name));
    folder = await scratchFolder();
    way = await pgbouncerWay(db.url, folder.path);
    road = await way.open(0);
  });
  afterAll(async () => {
    await road.close();
    await way.close();
    await folder.remove();
    await db.drop();
  });

  const job = (name: string, work: (context: WorkContext) => Promise<unknown>) =>
    defineJob({ name, leaseMs: 2_000, work });
  const run = async (task: ReturnType<typeof job>, slot: string) =>
    coordinate(deliveryFor(task, slot), 60_000, coordinatorOn(db.url, { target: road.target }));
  const running = async (task: ReturnType<typeof job>) => {
    const ids = () =>
      db.query(`SELECT id FROM cronce.run WHERE job = $1 AND status = 'running'`, [task.name]);
    await expect.poll(ids).toHaveLength(1);
    return String((await ids())[0]?.['id']);
  };

  it('a slot runs once, quiet work keeps its lock past its lease, and others are held', async () => {
    const task = job('quiet', async () => delay(4_500));
    const holding = run(task, '2026-11-29T12:00:00Z');
    const id = await running(task);
    await delay(2_500);
    expect(await run(task, '2026-11-29T13:00:00Z')).toMatchObject({ skipReason: 'held', blockedBy: id });
    expect(await holding).toMatchObject({ status: 'succeeded' });
    expect(await run(task, '2026-11-29T12:00:00Z')).toMatchObject({ skipReason: 'duplicate' });
  });

  it('more runs at once than the pool has places wait for theirs, in turn', async () => {
    const busy = [1, 2, 3, 4, 5].map((n) => job(`crowded-${n}`, async () => delay(1_200)));
    const runs = await Promise.all(busy.map((task) => run(task, '2026-11-29T12:00:00Z')));
    expect(runs.map(({ status }) => status)).toEqual(busy.map(() => 'succeeded'));
  });

  it('one for which no place comes free says what is missing, has no run, and is run when delivered again', async () => {
    const long = ['long-1', 'long-2'].map((name) => job(name, async () => delay(6_000)));
    const holding = long.map((task) => run(task, '2026-11-29T12:00:00Z'));
    await Promise.all(long.map(running));
    const late = job('late', async () => 'run');
    const briefly = coordinate(
      deliveryFor(late, '2026-11-29T12:00:00Z'),
      3_000,
      coordinatorOn(db.url, { target: road.target }),
    );
    await expect(briefly).rejects.toThrow(
      /no answer within \d+ ms: behind a pooler.*a place for each run at once/,
    );
    expect(await Promise.all(holding)).toMatchObject(long.map(() => ({ status: 'succeeded' })));
    expect(await run(late, '2026-11-29T12:00:00Z')).toMatchObject({ status: 'succeeded', attempt: 1 });
  });

  it('a cancel ends exactly the session that holds the run’s lock, and nobody else’s', async () => {
    const deaf = job('deaf', async () => delay(4_000));
    const bystander = job('bystander', async ({ tx }) => tx.query('SELECT pg_sleep(1)'));
    const holding = run(deaf, '2026-11-29T12:00:00Z');
    const id = await running(deaf);
    const beside = run(bystander, '2026-11-29T12:00:00Z');
    const session = await Session.open({ url: db.url, driver: 'pg', connectTimeoutMs: 5_000 });
    expect(await cancelRun(session, id, { by: 'ann', graceMs: 0 })).toMatchObject({ status: 'cancelled' });
    // Once more, when the pool may have given the backend to another client.
    expect(await cancelRun(session, id, { by: 'ann', graceMs: 0 })).toMatchObject({ status: 'cancelled' });
    await session.close();
    expect(await holding).toMatchObject({ id, status: 'cancelled' });
    expect((await beside).status).toBe('succeeded');
  });

  it('runs the last statements of a session that says goodbye without waiting for them', async () => {
    await db.query('CREATE TABLE told (n int)');
    for (let n = 0; n < 100; n++) {
      const session = await Session.open(road.target);
      const pid = (await session.send('SELECT pg_backend_pid() AS pid; BEGIN'))[0]?.rows[0] as {
        pid: number;
      };
      if (n % 2) session.answeredBy(pid.pid); // which is not what the pooler named
      await session.farewell(`INSERT INTO told VALUES (${n}); COMMIT`);
    }
    const told = async () => db.query('SELECT count(*)::int AS n FROM told');
    await expect.poll(told, { timeout: 5_000 }).toEqual([{ n: 100 }]);
  });

  it('leaves no lock and no setting behind for the next client of a pooled session', async () => {
    await run(
      job('clean', async () => 1),
      '2026-11-29T12:00:00Z',
    );
    const session = await Session.open(road.target);
    const { rows } = await session.query(
      `SELECT to_jsonb(ARRAY(SELECT name FROM pg_settings WHERE setting IS DISTINCT FROM reset_val
                      AND (name LIKE '%timeout' OR name ILIKE '%style' OR name = 'search_path'))) AS set,
              (SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND database =
                (SELECT oid FROM pg_database WHERE datname = current_database())) AS locks`,
    );
    await session.close();
    expect(rows).toEqual([{ set: [], locks: 0 }]);
  });
});

/** Transaction mode, a pool of one: whoever comes next gets what the last one left. */
describe.runIf(installed)('behind PgBouncer with one session', () => {
  let db: TestDatabase;
  let way: Way;
  let road: Road;
  let folder: Awaited<ReturnType<typeof scratchFolder>>;
  beforeAll(async () => {
    db = await freshDatabase();
    await db.query(openPublic(db.name));
    folder = await scratchFolder();
    way = await pgbouncerWay(db.url, folder.path, 1);
    road = await way.open(0);
  });
  afterAll(async () => {
    await road.close();
    await way.close();
    await folder.remove();
    await db.drop();
  });

  let jobs = 0;
  const run = async (work: (context: WorkContext) => Promise<unknown>, timeoutMs = 10_000) =>
    coordinate(
      deliveryFor(
        defineJob({ name: `job-${++jobs}`, leaseMs: 2_000, timeoutMs, work }),
        '2026-11-29T12:00:00Z',
      ),
      60_000,
      coordinatorOn(db.url, { target: road.target }),
    );
  const inherited = async () => {
    const session = await Session.open(road.target);
    const { rows } = await session.query(
      `SELECT current_setting('work_mem') AS memory, current_setting('statement_timeout') AS time,
              coalesce(current_setting('app.tenant', true), '') AS tenant, current_user = session_user AS own_role,
              to_regclass('scratch') AS temporary, (SELECT count(*)::int FROM pg_prepared_statements) AS prepared,
              (SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks`,
    );
    await session.close();
    return rows as unknown;
  };
  const nothing = [
    { memory: '4MB', time: '20s', tenant: '', own_role: true, temporary: null, prepared: 0, locks: 0 },
  ];

  it('runs a named statement again and again', async () => {
    const named = async ({ tx }: WorkContext) =>
      (await tx.query({ name: 'load', text: `SELECT ${jobs}::int + $1::int AS n`, values: [1] })).rows;
    for (const n of [jobs + 2, jobs + 3, jobs + 4])
      expect(await run(named)).toMatchObject({ status: 'succeeded', output: [{ n }] });
    expect(await inherited()).toEqual(nothing);
  });

  it.each([
    ['succeeds', 'succeeded', () => undefined],
    [
      'throws',
      'failed',
      () => {
        throw new Error('no');
      },
    ],
  ])('inherits nothing from work that %s', async (_how, status, end) => {
    const done = await run(async ({ tx }) => {
      await tx.query(
        `SELECT pg_advisory_lock(4711), pg_advisory_lock_shared(4712), pg_try_advisory_lock(1, 2)`,
      );
      await tx.query(`SELECT set_config('work_mem', '77kB', false), set_config('app.tenant', 'a', false)`);
      await tx.query(
        `SELECT set_config('statement_timeout', '1s', false), set_config('role', session_user::text, false)`,
      );
      await tx.query('CREATE TEMP TABLE scratch (n int)');
      end();
    });
    expect(done.status).toBe(status);
    expect(await inherited()).toEqual(nothing);
  });

  it('inherits nothing from work that ended in an SQL error, or at its deadline', async () => {
    const failed = await run(async ({ tx }) => {
      await tx.query('SELECT pg_advisory_lock(4711)');
      await tx.query('SELECT 1/0');
    });
    expect(failed).toMatchObject({ status: 'failed' });
    expect(await inherited()).toEqual(nothing);
    const late = await run(async ({ tx, signal }) => {
      await tx.query('SELECT pg_advisory_lock(4711)');
      await new Promise((resolve) => {
        signal.addEventListener('abort', resolve);
      });
    }, 300);
    expect(late).toMatchObject({ status: 'timed_out' });
    expect(await inherited()).toEqual(nothing);
  });

  // Its second session waits for the one that the run itself holds.
  it('says that fenced got no second connection, long before the deadline', async () => {
    const startedAt = performance.now();
    const done = await run(async ({ fenced }) => fenced(async () => 1), 20_000);
    expect(performance.now() - startedAt).toBeLessThan(15_000);
    expect(done.status).toBe('failed');
    expect(JSON.stringify(done.error)).toMatch(/second (connection|session)/);
  });
});

/** What leaves with the password comes to the pooler before it has said that we are in. */
describe.runIf(installed).each(['plain', 'md5', 'scram-sha-256'] as const)(
  'PgBouncer that asks for a password: %s',
  (login) => {
    let db: TestDatabase;
    let way: Awaited<ReturnType<typeof pgbouncerWay>>;
    let folder: Awaited<ReturnType<typeof scratchFolder>>;
    beforeAll(async () => {
      db = await freshDatabase();
      await db.query(openPublic(db.name));
      folder = await scratchFolder();
      way = await pgbouncerWay(db.url, folder.path, 2, login);
    });
    afterAll(async () => {
      await way.close();
      await folder.remove();
      await db.drop();
    });

    it('reads a first message once it has let us in, also where its own sessions are new, or taken', async () => {
      const target = targetOf(way.url);
      await db.query('CREATE TABLE greeting (n int)');
      const greet = async (n: number) => {
        const session = await Session.atFirstMessage(target);
        await session.send(`INSERT INTO greeting SELECT ${n} FROM pg_sleep(0.05)`);
        await session.close();
      };
      const all = Array.from({ length: 20 }, (_, n) => n);
      await Promise.all(all.map(greet));
      expect(await db.query('SELECT n FROM greeting ORDER BY n')).toEqual(all.map((n) => ({ n })));
    });

    it('and reads none of one that it does not let in', async () => {
      const target = targetOf(way.url.replace('secret', 'guess'));
      const session = await Session.atFirstMessage(target);
      await expect(session.send('CREATE TABLE never ()')).rejects.toThrow(AccessRefused);
      expect(await db.query(`SELECT to_regclass('never') AS made`)).toEqual([{ made: null }]);
    });

    it('runs a job', async () => {
      const task = defineJob({ name: 'asked', work: async () => 1 });
      const run = async () =>
        coordinate(
          deliveryFor(task, '2026-11-29T12:00:00Z'),
          60_000,
          coordinatorOn(db.url, { target: targetOf(way.url) }),
        );
      expect(await run()).toMatchObject({ status: 'succeeded' });
      expect(await run()).toMatchObject({ status: 'skipped', skipReason: 'duplicate' });
    });
  },
);
