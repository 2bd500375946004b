import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startPostgres, startStandby } from '../../infra/local/postgres.ts';
import { Stop } from '../../src/path/ending.ts';
import { FencedWaitsForTx } from '../../src/path/fenced.ts';
import type { WorkContext } from '../../src/job.ts';
import { lockKey } from '../../src/path/lock.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import {
  asError,
  cancel,
  connectPlain,
  deliver,
  endBackend,
  freeAt,
  insideId,
  job,
  noon,
  one,
  Passes,
  recordsOf,
  startFarHolder,
  startHolder,
  two,
  until,
  untilFree,
  untilWaiting,
  vouching,
} from '../support/rivals.ts';
import { startProxy } from '../support/proxy.ts';
import { scratchFolder } from '../support/scratch.ts';
import { startServer } from '../support/server.ts';

/**
 * A fence is a run's, not a number's: `fenced` commits while this very run stands, and nothing after its end is on record.
 * And what it leaves behind stands in no successor's way.
 */

/** What the jobs write to is their role's. */
const ours = `CREATE SCHEMA app; CREATE TABLE app.written (who text);
  CREATE TABLE app.account (id int PRIMARY KEY, n int); INSERT INTO app.account VALUES (1, 0)`;

let db: TestDatabase;
beforeAll(async () => {
  db = await freshDatabase();
  await db.queryAsRole(ours);
});
afterAll(async () => db.drop());

async function promote(superuserUrl: string): Promise<void> {
  const session = await connectPlain(superuserUrl);
  await session.query('SELECT pg_promote()');
  await session.end();
}

async function writtenBy(who: string): Promise<unknown[]> {
  return db.query('SELECT who FROM app.written WHERE who = $1', [who]);
}

/** What became of an attempt to write in `fenced`. */
async function attempt({ fenced }: WorkContext, who: string, first = async () => {}): Promise<unknown> {
  return fenced(async (tx) => {
    await tx.query('INSERT INTO app.written VALUES ($1)', [who]);
    await first();
  }).then(() => 'committed', asError);
}

const stopped = { name: 'Stop', reason: 'lock_lost' } satisfies Partial<Stop>;

describe.concurrent(
  'a run whose own connection is cut off, and that may still open others, commits nothing fenced',
  () => {
    it.each<[string, (runId: string) => Promise<unknown>, string]>([
      ['once it was cancelled', (runId) => cancel(db, runId, 0), 'cancelled'],
      [
        'once it was found dead',
        async (runId) => {
          await endBackend(db, runId);
          await db.query(
            `SELECT cronce.settle_dead(ARRAY[id], ARRAY[fence], clock_timestamp(), 'its backend is gone')
           FROM cronce.run WHERE id = $1`,
            [runId],
          );
        },
        'lost',
      ],
    ])('%s', async (_when, end, status) => {
      let settled = false;
      const results: unknown[] = [];
      const task = job(
        async (context) => {
          await until(() => settled);
          context.check(); // it can't know yet
          results.push(await attempt(context, context.runId));
        },
        { leaseMs: 15_000 },
      );
      const far = await startFarHolder(db, task, noon);
      far.cutOff({ newConnections: 'accept' });
      await end(far.runId);
      expect(await recordsOf(db, task)).toMatchObject([{ status }]);
      settled = true;
      await until(() => results.length > 0);
      await far.stop();
      expect(results).toMatchObject([stopped]);
      expect(await writtenBy(far.runId)).toEqual([]);
    });

    it('also where the transaction had begun before its end was recorded', async () => {
      let [begun, settled] = [false, false];
      const results: unknown[] = [];
      const task = job(
        async (context) => {
          results.push(
            await attempt(context, context.runId, async () => {
              begun = true;
              await until(() => settled);
            }),
          );
        },
        { leaseMs: 15_000 },
      );
      const far = await startFarHolder(db, task, noon);
      await until(() => begun);
      far.cutOff({ newConnections: 'accept' });
      expect(await cancel(db, far.runId, 0)).toMatchObject({ status: 'cancelled' });
      settled = true;
      await until(() => results.length > 0);
      await far.stop();
      expect(results).toEqual([expect.any(Error)]);
      expect(await writtenBy(far.runId)).toEqual([]);
    });

    it('once a second delivery of its slot has succeeded on another place of the lock', async () => {
      let succeeded = false;
      const results: unknown[] = [];
      const task = job(
        async (context) => {
          if (context.attempt > 1) return;
          await until(() => succeeded);
          context.check();
          results.push(await attempt(context, context.runId));
        },
        { places: 2, leaseMs: 15_000, lockDelayMs: 0 },
      );
      const [place, otherPlace] = [lockKey(task.name), lockKey(`${task.name}#1`)];
      const first = await startFarHolder(db, job(vouching(new Passes()), { lock: task.name }), two);
      const far = await startFarHolder(db, task, noon);
      await cancel(db, first.runId, 10_000);
      await first.stop();
      far.cutOff({ newConnections: 'accept' });
      await endBackend(db, far.runId);
      await Promise.all([freeAt(db, place), freeAt(db, otherPlace)]);
      const again = await deliver(db.url, task, noon);
      expect(again).toMatchObject({ status: 'succeeded', lockKey: place.toString() });
      succeeded = true;
      await until(() => results.length > 0);
      await far.stop();
      expect(results).toMatchObject([stopped]);
      expect(await writtenBy(far.runId)).toEqual([]);
    });
  },
);

it('after a failover that lost the last commits, no fence is given out twice, and the forgotten run is waited for', async () => {
  const folder = await scratchFolder();
  const primary = await startServer({ dataDir: join(folder.path, 'primary') });
  const own = await freshDatabase({ serverUrl: primary.url });
  await own.queryAsRole(ours);
  const standby = await startStandby(primary, { dataDir: join(folder.path, 'standby') });
  await standby.stop(); // so it never hears of what comes now
  const passes = new Passes();
  const results: unknown[] = [];
  const fences: bigint[] = [];
  let promoted = false;
  const task = job(
    async (context) => {
      fences.push(context.fence);
      if (context.params !== 'stay') return vouching(passes)(context);
      await until(() => promoted);
      results.push(await attempt(context, 'the forgotten run'));
      return vouching(passes)(context);
    },
    { leaseMs: 8_000 },
  );
  const far = await startFarHolder(own, task, noon);
  far.cutOff({ newConnections: 'accept' });
  await primary.kill();
  const next = await startPostgres({ ...standby, port: primary.port });
  try {
    await promote(next.url);
    const coming = deliver(own.url, task, one);
    await insideId(own, task, one); // the lock is its own, and its fence the last
    promoted = true;
    expect(await coming).toMatchObject({ status: 'succeeded', delayedMs: expect.any(Number) as number });
    await far.stop();
    expect(passes.of(`${noon}/1`).length, 'it vouched for itself').toBeGreaterThan(0);
    expect(passes.together()).toEqual([]);
    expect(results).toMatchObject([stopped]);
    expect(fences[1]).toBeGreaterThan(fences[0] ?? 0n);
    expect(await own.query('SELECT who FROM app.written')).toEqual([]);
    await own.drop();
  } finally {
    await next.stop();
    await folder.remove();
  }
}, 120_000);

describe.concurrent('a commit under way in fenced, when its run is ended by someone else', () => {
  async function almostCommitted() {
    const task = job(async ({ signal }) => delay(20_000, undefined, { signal }), { leaseMs: 15_000 });
    const far = await startFarHolder(db, task, noon);
    far.cutOff();
    const session = await connectPlain(db.url);
    await session.query('BEGIN ISOLATION LEVEL READ COMMITTED');
    await session.query('SELECT cronce.begin_fenced($1, 15000)', [far.runId]);
    await session.query('INSERT INTO app.written VALUES ($1)', [far.runId]);
    await session.query('SELECT cronce.demand_fence($1)', [far.runId]);
    return { far, session };
  }

  it('is waited for, and stands before that end does', async () => {
    const { far, session } = await almostCommitted();
    let answered = false;
    const cancelling = cancel(db, far.runId, 0).finally(() => (answered = true));
    await untilWaiting(db, 'cronce.settle(', far.runId);
    await session.query('COMMIT');
    expect(answered).toBe(false);
    expect(await cancelling).toMatchObject({ status: 'cancelled' });
    expect(await writtenBy(far.runId)).toHaveLength(1);
    await session.end();
    await far.stop();
  });

  it('that does not come to its end does not come after that of the run', async () => {
    const { far, session } = await almostCommitted();
    expect(await cancel(db, far.runId, 0)).toMatchObject({ status: 'cancelled' });
    await session.query('COMMIT').catch(() => undefined);
    expect(await writtenBy(far.runId)).toEqual([]);
    await session.end().catch(() => undefined);
    await far.stop();
  });
});

describe.concurrent('a statement of fenced that outlives its run', () => {
  const sleeping = (mark: string) =>
    db.query(
      `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE $1 AND state = 'active'
      AND pid <> pg_backend_pid()`,
      [`SELECT pg_sleep(50), '${mark}%`],
    );

  it('whose process was killed: the next deliveries get through and have their records', async () => {
    const name = `fenced-${process.pid}`;
    const work = { fencedSql: `SELECT pg_sleep(50), '${name}'` };
    const holder = startHolder({ url: db.url, slot: noon, job: { name, leaseMs: 2_000 }, work });
    await until(async () => (await sleeping(name)).length === 1);
    holder.kill();
    await freeAt(db, lockKey(name));
    const task = { ...job(async () => 1, { leaseMs: 2_000 }), name, lock: name };
    expect(await deliver(db.url, task, one)).toMatchObject({ status: 'succeeded' });
    expect(await deliver(db.url, task, two)).toMatchObject({ status: 'succeeded' });
    expect(await sleeping(name)).toEqual([]);
  });

  it.each<[string, Parameters<typeof job>[1], ((runId: string) => Promise<unknown>) | null]>([
    ['cancelled', {}, (runId) => cancel(db, runId, 10_000)],
    ['cancelled', {}, (runId) => cancel(db, runId, 0)],
    ['timed_out', { timeoutMs: 1_500 }, null],
  ])('that is %s: it ends with its run', async (status, options, end) => {
    const task = job(
      async ({ fenced, runId }) => fenced((tx) => tx.query(`SELECT pg_sleep(50), '${runId}'`)),
      options,
    );
    const running = deliver(db.url, task, noon);
    const id = await insideId(db, task);
    await until(async () => (await sleeping(id)).length === 1);
    await end?.(id);
    expect(await running).toMatchObject({ status });
    await until(async () => (await sleeping(id)).length === 0, 5_000);
    expect(await deliver(db.url, { ...task, work: async () => 1 }, one)).toMatchObject({
      status: 'succeeded',
    });
  });

  it('of a cut-off run with a long lease: a successor with a short one gets through all the same', async () => {
    let begun = false;
    const long = job(
      async ({ fenced }) =>
        fenced(async (tx) => {
          await tx.query('SELECT 1');
          begun = true;
          await delay(30_000);
        }),
      { leaseMs: 30_000, lockDelayMs: 0 },
    );
    const far = await startFarHolder(db, long, noon);
    await until(() => begun);
    far.cutOff();
    await endBackend(db, far.runId);
    await untilFree(db, long);
    const short = job(async () => 1, { lock: long.name, leaseMs: 2_000 });
    expect(await deliver(db.url, short, one)).toMatchObject({ status: 'succeeded' });
    expect(await recordsOf(db, long)).toMatchObject([{ status: 'lost' }]);
    await far.stop();
  });

  it('of another role, whose session nobody here may end: the delivery gives way, on record and owed', async () => {
    const urls: { readonly role: string; readonly url: string }[] = [];
    for (const which of ['one', 'other']) {
      const role = `fence_${which}_${process.pid}`;
      // One after the other: two GRANTs at once change the same row of the catalogue.
      await db.query(`CREATE ROLE ${role} LOGIN PASSWORD 'x'; GRANT CONNECT ON DATABASE ${db.name} TO ${role};
        GRANT USAGE ON SCHEMA cronce TO ${role};
        GRANT ALL ON ALL TABLES IN SCHEMA cronce TO ${role}`);
      const url = Object.assign(new URL(db.url), { username: role, password: 'x' });
      urls.push({ role, url: url.href });
    }
    const [holder, successor] = urls;
    let begun = false;
    const task = job(
      async ({ fenced }) =>
        fenced(async (tx) => {
          await tx.query('SELECT 1');
          begun = true;
          await delay(30_000);
        }),
      { leaseMs: 30_000, lockDelayMs: 0 },
    );
    const far = await startFarHolder({ ...db, url: holder?.url ?? '' }, task, noon);
    await until(() => begun);
    far.cutOff();
    await endBackend(db, far.runId);
    await untilFree(db, task);
    const next = await deliver(successor?.url ?? '', task, one);
    expect(next).toMatchObject({ status: 'skipped', skipReason: 'held', final: false, blockedBy: far.runId });
    await far.stop();
    for (const { role } of urls) await db.query(`DROP OWNED BY ${role} CASCADE; DROP ROLE ${role}`);
  });
});

describe.concurrent('fenced', () => {
  it('is durable where the database’s default is not', async () => {
    await db.query(`ALTER DATABASE ${db.name} SET synchronous_commit = off`);
    const task = job(async ({ fenced }) =>
      fenced((tx) => tx.query('SHOW synchronous_commit')).then(({ rows }) => rows),
    );
    const { output } = await deliver(db.url, task, noon);
    await db.query(`ALTER DATABASE ${db.name} RESET synchronous_commit`);
    expect(output).toEqual([{ synchronous_commit: 'local' }]);
  });

  it('that waits for a row which tx of its own run has locked says so, long before the deadline', async () => {
    const seen: unknown[] = [];
    const update = 'UPDATE app.account SET n = n + 1 WHERE id = 1';
    const task = job(
      async ({ tx, fenced }) => {
        await tx.query(update);
        await fenced((own) => own.query(update)).catch((error: unknown) => {
          seen.push(error);
          throw error;
        });
      },
      { timeoutMs: 20_000 },
    );
    expect(await deliver(db.url, task, noon)).toMatchObject({
      status: 'failed',
      error: { name: 'FencedWaitsForTx' },
    });
    expect(seen).toEqual([expect.any(FencedWaitsForTx)]);
  });

  it('that the work forgot to wait for commits nothing once the run has ended', async () => {
    const results: unknown[] = [];
    let begun = false;
    let over = false;
    const task = job(async (context) => {
      const forgotten = attempt(context, context.runId, async () => {
        begun = true;
        await until(() => over);
      });
      void forgotten.then((result) => results.push(result));
      await until(() => begun);
    });
    const { id, status } = await deliver(db.url, task, noon);
    over = true;
    expect(status).toBe('succeeded');
    await until(() => results.length > 0);
    expect(results).toEqual([expect.any(Error)]);
    expect(await writtenBy(id)).toEqual([]);
  });

  it('that is cut off in mid-transaction costs its run’s successor seconds at most, whatever its own lease', async () => {
    const proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
    let begun = false;
    const task = job(
      async ({ fenced, tx }) =>
        fenced(async (own) => {
          await own.query('SELECT 1');
          begun = true;
          await tx.query('SELECT 1');
          await delay(30_000);
        }),
      { leaseMs: 20_000, lockDelayMs: 0 },
    );
    const running = deliver(proxy.url(db.url), task, noon).catch(asError);
    await until(() => begun);
    proxy.partition({ newConnections: 'refuse' });
    await cancel(db, await insideId(db, task), 0);
    expect(await deliver(db.url, { ...task, work: async () => 1 }, one)).toMatchObject({
      status: 'succeeded',
    });
    await proxy.stop();
    await running;
  });
});
