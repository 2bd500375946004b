import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startStandby } from '../../infra/local/postgres.ts';
import { coordinate } from '../../src/coordinate.ts';
import { Stop } from '../../src/path/ending.ts';
import { defineJob, type JobOptions, type WorkContext } from '../../src/job.ts';
import { lockKey } from '../../src/path/lock.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { startProxy, type Proxy } from '../support/proxy.ts';
import { startServer } from '../support/server.ts';

const noon = '2026-11-29T12:00:00Z';
const one = '2026-11-29T13:00:00Z';
const leaseMs = 2_000;

let db: TestDatabase;
let jobs = 0;
beforeAll(async () => void (db = await freshDatabase({ examples: true })));
afterAll(async () => db.drop());

function job(work: (context: WorkContext) => Promise<unknown>, options: Partial<JobOptions> = {}) {
  return defineJob({ name: `job-${++jobs}`, leaseMs, work, ...options });
}

/** When the lock of this name is free, by asking the server over and over. */
async function freeAt(name: string): Promise<number> {
  const monitor = new pg.Client({ connectionString: db.url });
  await monitor.connect();
  try {
    for (;;) {
      const { rows } = await monitor.query<{ free: boolean }>(
        'SELECT pg_try_advisory_xact_lock($1) AS free',
        [lockKey(name).toString()],
      );
      if (rows[0]?.free) return performance.now();
      await delay(5);
    }
  } finally {
    await monitor.end();
  }
}

function aborted(signal: AbortSignal): Promise<{ at: number; stop: Stop }> {
  return new Promise((resolve) => {
    signal.addEventListener('abort', () => {
      resolve({ at: performance.now(), stop: signal.reason as Stop });
    });
  });
}

async function throughProxy(body: (proxy: Proxy, url: string) => Promise<void>): Promise<void> {
  const proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
  try {
    await body(proxy, proxy.url(db.url));
  } finally {
    await proxy.stop();
  }
}

describe('a holder that is cut off without a word', () => {
  it.each([
    ['while it is idle', async () => delay(10_000)],
    [
      'in the middle of a statement',
      async ({ tx }: WorkContext) => tx.query('SELECT pg_sleep(0.7)').catch(() => undefined),
    ],
  ])('stops before the server lets go of its lock, %s', async (_when, work) => {
    await throughProxy(async (proxy, url) => {
      let stopped: ReturnType<typeof aborted> | undefined;
      const task = job(async (context) => {
        if (context.fence > 1n) return;
        stopped = aborted(context.signal);
        const working = work(context);
        setTimeout(() => {
          proxy.partition({ newConnections: 'refuse' });
        }, 100);
        await working;
        await delay(10_000, undefined, { signal: context.signal });
      });
      const running = coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(url)).catch(
        (error: unknown) => error,
      );
      await expect.poll(() => stopped).toBeDefined();
      const [free, end] = await Promise.all([freeAt(task.name), stopped]);
      expect(end?.stop.reason).toBe('lock_lost');
      expect(free - (end?.at ?? Infinity), 'lead, ms').toBeGreaterThan(0);
      expect(await running).toMatchObject({ name: 'OutcomeUnknown' });
      expect(await coordinate(deliveryFor(task, one), 60_000, { ...coordinatorOn(db.url) })).toMatchObject({
        fence: '2',
      });
      const [left] = await db.query('SELECT status FROM cronce.run WHERE job = $1 AND slot = $2', [
        task.name,
        noon,
      ]);
      expect(left).toEqual({ status: 'lost' });
    });
  });
});

it('a run that says nothing to the database keeps its lock for as long as it works', async () => {
  const task = job(async () => delay(3 * leaseMs));
  const running = coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
  await delay(2.5 * leaseMs);
  expect(await coordinate(deliveryFor(task, one), 60_000, coordinatorOn(db.url))).toMatchObject({
    skipReason: 'held',
  });
  expect(await running).toMatchObject({ status: 'succeeded' });
});

describe('a statement longer than the lease', () => {
  it('is vouched for by a second session', async () => {
    const task = job(async ({ tx }) => (await tx.query('SELECT pg_sleep(4.5)')).rowCount);
    expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url))).toMatchObject({
      status: 'succeeded',
    });
  });

  it('loses its run where the role may have no second session, and says so', async () => {
    await db.query(`CREATE ROLE lonely LOGIN PASSWORD 'lonely' CONNECTION LIMIT 1`);
    await db.query(
      `GRANT CONNECT ON DATABASE ${db.name} TO lonely; GRANT USAGE ON SCHEMA cronce TO lonely;
       GRANT ALL ON ALL TABLES IN SCHEMA cronce TO lonely`,
    );
    const url = new URL(db.url);
    url.username = url.password = 'lonely';
    const task = job(async ({ tx }) => tx.query('SELECT pg_sleep(4.5)'));
    const run = await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(url.href)).catch(
      (error: unknown) => error,
    );
    expect(run).toSatisfy(
      (end: { status?: string; name?: string }) => end.status === 'lost' || end.name === 'OutcomeUnknown',
    );
    const short = job(async ({ tx }) => (await tx.query('SELECT 1 AS x')).rows);
    await expect
      .poll(
        async () => coordinate(deliveryFor(short, noon), 60_000, coordinatorOn(url.href)).catch(() => null),
        { timeout: 8_000 },
      )
      .toMatchObject({ status: 'succeeded' });
    await db.query('DROP OWNED BY lonely; DROP ROLE lonely');
  });

  it('can still be cancelled', async () => {
    const task = job(async ({ tx }) => tx.query('SELECT pg_sleep(20)'));
    const running = coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
    await expect
      .poll(async () =>
        db.query(`SELECT cronce.request_cancel(id, 'ann') FROM cronce.run WHERE job = $1`, [task.name]),
      )
      .toHaveLength(1);
    expect(await running).toMatchObject({ status: 'cancelled', cancelRequestedBy: 'ann', final: true });
  });
});

describe('a database with settings of its own', () => {
  it.each([
    [`default_transaction_isolation = 'repeatable read'`],
    [`default_transaction_isolation = 'serializable'`],
    [`idle_in_transaction_session_timeout = '1s'`],
    [`statement_timeout = '1s'`],
    [`transaction_timeout = '1s'`],
    [`synchronous_commit = off`],
    [`lock_timeout = '1ms'`],
    [`TimeZone = 'America/New_York'`],
  ])('does not get in the way: %s', async (setting) => {
    const own = await freshDatabase();
    const [name] = setting.split(' ');
    // transaction_timeout is one from version 17 on.
    const known = await own.query('SELECT 1 FROM pg_settings WHERE lower(name) = lower($1)', [name]);
    if (known.length > 0) await own.query(`ALTER DATABASE ${own.name} SET ${setting}`);
    const task = job(async ({ tx }) => {
      await delay(1_300);
      return (await tx.query(`SELECT current_setting('transaction_isolation') AS level`)).rows;
    });
    const runs = await Promise.all(
      [1, 2].map(() => coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(own.url))),
    );
    await own.drop();
    expect(runs.map(({ status }) => status).sort()).toEqual(['skipped', 'succeeded']);
    const success = runs.find(({ status }) => status === 'succeeded');
    expect(success).toMatchObject({
      output: [{ level: 'read committed' }],
      scheduledFor: '2026-11-29T12:00:00.000Z',
    });
  });

  it('waits in vain for nothing: a waiting run pins neither a transaction id nor a snapshot', async () => {
    const seen: unknown[] = [];
    const task = job(async ({ tx }) => {
      await tx.query('SELECT 1');
      seen.push(
        ...(await db.query(
          `SELECT backend_xid IS NULL AND backend_xmin IS NULL AS free FROM pg_stat_activity
         WHERE pid = (SELECT backend_pid FROM cronce.run WHERE job = $1)`,
          [task.name],
        )),
      );
    });
    await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
    expect(seen).toEqual([{ free: true }]);
  });
});

describe('fenced()', () => {
  it('commits each small transaction by itself, whatever becomes of the run', async () => {
    const task = job(async ({ fenced }) => {
      await fenced((own) => own.query(`INSERT INTO app.page_view VALUES (now(), 'fenced', 'kept')`));
      throw new Error('later');
    });
    expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url))).toMatchObject({
      status: 'failed',
    });
    expect(await db.query(`SELECT visitor FROM app.page_view WHERE path = 'fenced'`)).toEqual([
      { visitor: 'kept' },
    ]);
  });

  it('rolls back what its body threw after, and what an SQL error had spoilt', async () => {
    const task = job(async ({ fenced }) => {
      const insert = `INSERT INTO app.page_view VALUES (now(), 'spoilt', 'x')`;
      await fenced(async (own) => {
        await own.query(insert);
        throw new Error('no');
      }).catch(() => undefined);
      await fenced(async (own) => {
        await own.query(insert);
        await own.query('SELECT 1/0').catch(() => undefined);
      });
    });
    const run = await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
    expect(run).toMatchObject({
      status: 'failed',
      error: { code: '22012' },
    });
    expect(await db.query(`SELECT 1 FROM app.page_view WHERE path = 'spoilt'`)).toEqual([]);
  });

  it('ends with its run, and commits nothing then, while a successor waits for the lock delay', async () => {
    const order: string[] = [];
    const results: unknown[] = [];
    const task = job(async ({ attempt, fenced, signal }) => {
      if (attempt === 2) {
        order.push('successor');
        return;
      }
      const lost = aborted(signal);
      await fenced(async (own) => {
        await own.query(`INSERT INTO app.page_view VALUES (now(), 'zombie', 'first')`);
        await db.query(
          `SELECT pg_terminate_backend(backend_pid) FROM cronce.run WHERE job = $1 AND status = 'running'`,
          [task.name],
        );
        await lost;
        void coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url)).then((run) =>
          results.push(run.status),
        );
        await delay(500);
        order.push('zombie ends');
      }).catch((error: unknown) => results.push(error));
      await fenced((own) => own.query(`INSERT INTO app.page_view VALUES (now(), 'zombie', 'second')`)).catch(
        (error: unknown) => results.push(error),
      );
    });
    expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url))).toMatchObject({
      status: 'lost',
    });
    await expect.poll(() => results, { timeout: 20_000 }).toHaveLength(3);
    expect(order).toEqual(['zombie ends', 'successor']);
    expect(results).toEqual(expect.arrayContaining([expect.any(Stop), expect.any(Stop), 'succeeded']));
    expect(await db.query(`SELECT visitor FROM app.page_view WHERE path = 'zombie'`)).toEqual([]);
  });
});

it('a holder that has lost its lock without knowing can commit nothing fenced', async () => {
  await throughProxy(async (proxy, url) => {
    const seen: unknown[] = [];
    const task = job(
      async ({ fence, fenced }) => {
        if (fence > 1n) return;
        // Its own connection is cut off silently and ended by the server: for some seconds it believes that it holds on.
        proxy.partition({ newConnections: 'accept' });
        await db.query(`SELECT pg_terminate_backend(backend_pid) FROM cronce.run WHERE job = $1`, [
          task.name,
        ]);
        await freeAt(task.name);
        const next = await coordinate(deliveryFor(task, one), 60_000, coordinatorOn(db.url));
        seen.push(next.status);
        await fenced((own) => own.query(`INSERT INTO app.page_view VALUES (now(), 'unknowing', 'x')`)).catch(
          (error: unknown) => seen.push(error),
        );
      },
      { leaseMs: 15_000, lockDelayMs: 0 },
    );
    expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(url))).toMatchObject({
      status: 'lost',
    });
    expect(seen).toMatchObject([
      'succeeded',
      { name: 'Stop', reason: 'lock_lost', message: expect.stringContaining('no longer stands') as string },
    ]);
    expect(await db.query(`SELECT 1 FROM app.page_view WHERE path = 'unknowing'`)).toEqual([]);
  });
});

it('check() throws at once when the process was away for longer than the lease, before any timer or socket has spoken', async () => {
  const seen: unknown[] = [];
  const task = job(async ({ check }) => {
    check();
    const until = Date.now() + leaseMs + 100;
    while (Date.now() < until); // blocks the event loop, as a frozen sandbox would
    try {
      check();
      seen.push('an effect');
    } catch (error) {
      seen.push((error as Stop).reason);
      throw error;
    }
  });
  expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url))).toMatchObject({
    status: 'lost',
  });
  expect(seen).toEqual(['lock_lost']);
});

function onPort(url: string, port: number): string {
  const other = new URL(url);
  other.port = String(port);
  return other.href;
}

describe('a server', () => {
  it('that is a standby is refused', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'cronce-standby-'));
    const primary = await startServer({ dataDir: join(folder, 'primary') });
    const own = await freshDatabase({ serverUrl: primary.url });
    const standby = await startStandby(primary, { dataDir: join(folder, 'standby') });
    const task = job(async () => 1);
    const refused = await coordinate(
      deliveryFor(task, noon),
      60_000,
      coordinatorOn(onPort(own.url, standby.port)),
    ).catch((error: unknown) => error);
    expect(refused).toMatchObject({
      name: 'NotWritable',
      message: expect.stringContaining('primary') as string,
    });
    expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(own.url))).toMatchObject({
      status: 'succeeded',
    });
    await standby.stop();
    await own.drop();
    await primary.stop();
    await rm(folder, { recursive: true, force: true });
  }, 60_000);

  it('that has just restarted under an unfinished run makes its successor wait out the lease', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'cronce-restart-'));
    const server = await startServer({ dataDir: folder });
    const own = await freshDatabase({ serverUrl: server.url });
    const proxy = await startProxy({ targetPort: server.port });
    const workedAt: number[] = [];
    let stopped: ReturnType<typeof aborted> | undefined;
    const task = job(
      async ({ signal, attempt }) => {
        workedAt.push(performance.now());
        if (attempt > 1) return;
        stopped = aborted(signal);
        await stopped;
      },
      { leaseMs: 4_000 },
    );
    const first = coordinate(
      deliveryFor(task, noon),
      60_000,
      coordinatorOn('', { target: targetOf(proxy.url(own.url)) }),
    ).catch((error: unknown) => error);
    await expect.poll(() => workedAt).toHaveLength(1);
    proxy.partition({ newConnections: 'refuse' });
    await server.restart('immediate');
    const next = await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(own.url));
    expect(next).toMatchObject({ status: 'succeeded', attempt: 2 });
    expect((await stopped)?.stop.reason).toBe('lock_lost');
    expect(workedAt[1], 'the successor works only after the cut-off one has stopped').toBeGreaterThan(
      (await stopped)?.at ?? Infinity,
    );
    await first;
    await proxy.stop();
    await own.drop();
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  }, 60_000);
});
