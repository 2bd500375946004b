import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { v7 as uuidV7 } from 'uuid';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { claimSql } from '../../src/path/claim.ts';
import { Stop } from '../../src/path/ending.ts';
import type { Job, JobOptions } from '../../src/job.ts';
import { lockKey, lockOf } from '../../src/path/lock.ts';
import { keepingLogger, deliveryFor } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { claimant, connect, leaveOrphan, Witness } from '../support/protocol.ts';
import { startProxy } from '../support/proxy.ts';
import {
  asError,
  cancel,
  connectPlain,
  deliver,
  endBackend,
  freeAt,
  inTheMiddleOf,
  insideId,
  job,
  leaseMs,
  noon,
  one,
  recordsOf,
  startFarHolder,
  startHolder,
  sweep,
  two,
  until,
  untilBlocked,
  untilFree,
  untilWaiting,
} from '../support/rivals.ts';
import { scratchFolder } from '../support/scratch.ts';
import { startServer } from '../support/server.ts';

/** Nothing is stranded, and nothing disappears: each delivery has its record, each record is told, each wait is bounded. */

let db: TestDatabase;
beforeAll(async () => {
  db = await freshDatabase();
  await db.queryAsRole(slowCheck);
});
afterAll(async () => db.drop());

/** A deferred check that takes longer than a lease of 2 s. */
const slowCheck = `CREATE SCHEMA app; CREATE TABLE app.checked (x int);
  CREATE FUNCTION app.slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2.5); RETURN NULL; END $$;
  CREATE CONSTRAINT TRIGGER slowly AFTER INSERT ON app.checked DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION app.slowly()`;

function gate(): { readonly opened: Promise<void>; readonly open: () => void } {
  let open: () => void = () => undefined;
  const opened = new Promise<void>((resolve) => (open = resolve));
  return { opened, open };
}

describe.concurrent('an invocation that is killed while it waits for the lock', () => {
  it('claims nothing after its death, and its slot can still run', async () => {
    const { opened, open } = gate();
    const name = `waiting-${process.pid}`;
    const options = { name, leaseMs: 2_000, overlap: 'wait', waitMs: 60_000, afterLost: 'hold' } as const;
    const task = { ...job(async () => opened, options), name, lock: name };
    const first = deliver(db.url, task, noon);
    await insideId(db, task);
    const waiting = startHolder({ url: db.url, slot: one, job: options, work: 'say' });
    await untilWaiting(db, 'cronce.claim(', name, one);
    waiting.kill();
    await until(async () => (await inTheMiddleOf(db, ['cronce.claim(', name, one])).length === 0, 5_000);
    open();
    expect(await first).toMatchObject({ status: 'succeeded' });
    expect(await recordsOf(db, task, one)).toEqual([]);
    expect(await deliver(db.url, { ...task, work: async () => 1 }, one)).toMatchObject({
      status: 'succeeded',
      attempt: 1,
    });
    expect(waiting.words).toEqual([]);
  });
});

describe('a migration beside work that goes on', () => {
  it.each([
    ['ALTER TABLE cronce.run ADD COLUMN IF NOT EXISTS note text'],
    ['ALTER TABLE cronce.lock ADD COLUMN IF NOT EXISTS note text'],
    ['VACUUM FULL cronce.run'],
  ])('waits for nothing, and nothing waits for it: %s', async (sql) => {
    const own = await freshDatabase();
    const { opened, open } = gate();
    let begun = 0;
    const long = job(
      async ({ tx }) => {
        await tx.query('SELECT 1');
        begun += 1;
        await opened;
      },
      { leaseMs: 2_000 },
    );
    const small = job(
      async ({ fenced }) =>
        fenced(async (tx) => {
          await tx.query('SELECT 1');
          begun += 1;
          await opened;
        }),
      { leaseMs: 60_000 }, // as long as a busy machine may take for all this
    );
    const working = [deliver(own.url, long, noon), deliver(own.url, small, noon)];
    await until(() => begun === 2);
    const patient = { ...long, overlap: 'wait', waitMs: 60_000, work: async () => 1 } as const;
    working.push(deliver(own.url, patient, one));
    await untilWaiting(own, 'cronce.claim(', one);
    await delay(1_000); // a heartbeat or two, whose locks must not have stayed
    let [streamed, migrated] = [0, false];
    const stream = async () => {
      for (; !migrated || streamed < 10; streamed++) {
        const task = job(async () => 1);
        expect(await deliver(own.url, task, noon)).toMatchObject({ status: 'succeeded' });
      }
    };
    // As the server counts it: how long a busy machine takes for all else says nothing about waiting.
    const waits: number[] = [];
    const watch = async () => {
      while (!migrated) {
        await delay(20);
        const waiting = await own.query(
          `SELECT extract(epoch FROM clock_timestamp() - waitstart)::float * 1000 AS ms FROM pg_locks
           WHERE NOT granted AND locktype = 'relation'
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`,
        );
        waits.push(...waiting.map(({ ms }) => Number(ms)));
      }
    };
    const going = [stream(), watch()];
    await until(() => streamed > 2);
    const migration = await connectPlain(own.superuserUrl);
    await migration.query(sql);
    migrated = true;
    await migration.end();
    await Promise.all(going);
    open();
    expect((await Promise.all(working)).map(({ status, error }) => [status, error?.message])).toEqual(
      Array(3).fill(['succeeded', undefined]),
    );
    expect(Math.max(0, ...waits), 'ms that anything waited for a table').toBeLessThan(2_000);
    await own.drop();
  });
});

describe.concurrent('a wait of ours is bounded where the server falls silent', () => {
  it('in the first heartbeat after a long wait for the lock', async () => {
    const proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
    const { opened, open } = gate();
    const task = job(async () => opened, { leaseMs: 2_000, overlap: 'wait', waitMs: 20_000 });
    const first = deliver(db.url, task, noon);
    await insideId(db, task);
    const beats = proxy.waitForQuery('cronce.beat', { hold: true }).then(() => {
      proxy.partition({ newConnections: 'refuse' });
      return performance.now();
    });
    const second = deliver(proxy.url(db.url), task, one).then(String, asError);
    await untilWaiting(db, 'cronce.claim(', task.name, one);
    await delay(2_500); // longer than its lease
    open();
    await first;
    const silentSince = await beats;
    expect(await second).toBeInstanceOf(Error);
    expect(performance.now() - silentSince).toBeLessThan(10_000);
    await proxy.stop();
  });

  it.each(['cronce.claim(', 'cronce.record(r)', 'cronce.settle('])(
    'in %s of a replacing run',
    async (query) => {
      const proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
      const { opened, open } = gate();
      const task = job(async () => opened, { overlap: 'replace', waitMs: 1_000 });
      const first = deliver(db.url, task, noon);
      await insideId(db, task);
      const silent = proxy.waitForQuery(query, { hold: true }).then(() => {
        proxy.partition({ newConnections: 'refuse' });
        return performance.now();
      });
      const second = deliver(proxy.url(db.url), task, one, { timeLeftMs: 20_000 }).then(String, asError);
      const silentSince = await silent;
      expect(await second).toBeInstanceOf(Error);
      expect(performance.now() - silentSince).toBeLessThan(22_000);
      open();
      await first;
      await proxy.stop();
    },
    60_000,
  );
});

describe.concurrent('a cut-off holder', () => {
  it('in the middle of a statement keeps its lock for that and a lease, and no longer', async () => {
    const task = job(async ({ tx }) => tx.query('SELECT pg_sleep(4)'), { leaseMs: 2_000 });
    const far = await startFarHolder(db, task, noon);
    await untilWaiting(db, 'pg_sleep(4)');
    const since = Date.now();
    far.cutOff();
    const free = await freeAt(db, lockKey(task.name));
    expect(free - since).toBeLessThan(4_000 + 2_000 + 2_000);
    expect(await deliver(db.url, { ...task, work: async () => 1 }, one)).toMatchObject({
      status: 'succeeded',
    });
    await far.stop();
  });

  it('whose job had turned its idle limit off loses its lock within a lease of its next heartbeat', async () => {
    const proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
    let cut = false;
    const task = job(async ({ tx, signal }) => {
      await tx.query('SET LOCAL idle_in_transaction_session_timeout = 0');
      await proxy.waitForQuery('cronce.beat');
      await tx.query('SELECT 1'); // behind the heartbeat, which is answered by then
      proxy.partition({ newConnections: 'hang' });
      cut = true;
      await delay(20_000, undefined, { signal });
    });
    const running = deliver(proxy.url(db.url), task, noon).catch(asError);
    await until(() => cut);
    await until(async () => freeAt(db, lockKey(task.name)), 10_000);
    await proxy.stop();
    await running;
  });
});

describe.concurrent('every outcome is told', () => {
  /** What the log has been told of a run, by its own invocation or by a sweep half a minute later. */
  async function toldOf(runId: string, own: ReturnType<typeof keepingLogger>): Promise<number> {
    const logger = keepingLogger();
    await db.query(`UPDATE cronce.run SET publish_after = clock_timestamp() WHERE id = $1`, [runId]);
    const { own: swept } = await sweep(db, [], { logger, deployment: `telling-${runId}` });
    expect(swept).toMatchObject({ status: 'succeeded' });
    const lines = [...own.lines, ...logger.lines].filter(({ fields }) =>
      JSON.stringify(fields).includes(`"id":"${runId}"`),
    );
    const [row] = await db.query('SELECT published_at FROM cronce.run WHERE id = $1', [runId]);
    expect(row?.['published_at'], 'it is stamped').not.toBeNull();
    return lines.length;
  }

  /** In a deployment of its own, whose outcomes no other sweep tells. */
  const inDeployment = (runId: string) =>
    db.query(`UPDATE cronce.run SET deployment = 'telling-' || id WHERE id = $1`, [runId]);

  it('of a run that was settled by a claim which then came to nothing', async () => {
    const task = job(async () => 1);
    const dead = await startFarHolder(
      db,
      job(async () => delay(20_000), { lock: task.name, lockDelayMs: 0 }),
      noon,
    );
    await inDeployment(dead.runId);
    dead.cutOff();
    await endBackend(db, dead.runId);
    await untilFree(db, task);
    // A stranger queues for the key while the claim has it, and so gets it between start record and lock.
    const key = lockKey(task.name).toString();
    const [gatekeeper, stranger] = await Promise.all([
      connectPlain(db.superuserUrl),
      connectPlain(db.superuserUrl),
    ]);
    await gatekeeper.query('BEGIN');
    await gatekeeper.query('SELECT FROM cronce.run WHERE id = $1 FOR UPDATE', [dead.runId]);
    const logger = keepingLogger();
    const claiming = deliver(db.url, task, one, { coordinator: { logger } });
    await untilBlocked(db, 'cronce.claim(', task.name);
    const got = stranger.query('SELECT pg_advisory_lock($1)', [key]);
    await untilBlocked(db, 'pg_advisory_lock');
    await gatekeeper.query('COMMIT');
    await got;
    expect(await claiming).toMatchObject({ status: 'skipped', skipReason: 'held' });
    await Promise.all([gatekeeper.end(), stranger.end()]);
    expect(await recordsOf(db, { name: (await settled(dead.runId)).job }, noon)).toMatchObject([
      { status: 'lost' },
    ]);
    expect(await toldOf(dead.runId, logger)).toBeGreaterThan(0);
    await dead.stop();
  });

  const settled = async (id: string) => {
    const [row] = await db.query('SELECT job FROM cronce.run WHERE id = $1', [id]);
    return { job: String(row?.['job']) };
  };

  it('of a killed run that a replacing one finds in its way', async () => {
    const task = job(async () => 1, { overlap: 'replace', waitMs: 1_000, lockDelayMs: 0 });
    const dead = await startFarHolder(db, { ...task, work: async () => delay(20_000) }, noon);
    dead.cutOff();
    await endBackend(db, dead.runId);
    await untilFree(db, task);
    const logger = keepingLogger();
    expect(await deliver(db.url, task, one, { coordinator: { logger } })).toMatchObject({
      status: 'succeeded',
    });
    const [record] = await recordsOf(db, task, noon);
    expect(record, 'nobody had asked for its end').toMatchObject({ status: 'lost', final: false });
    await inDeployment(dead.runId);
    expect(await toldOf(dead.runId, logger)).toBeGreaterThan(0);
    await dead.stop();
  });

  it('of a success whose COMMIT was answered to nobody', async () => {
    const proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
    const task = job(async () => 1);
    const logger = keepingLogger();
    const swallowed = proxy.swallowReplyTo('cronce.finish(').then(() => {
      proxy.partition({ newConnections: 'refuse' });
    });
    const end = await deliver(proxy.url(db.url), task, noon, {
      coordinator: { logger },
      timeLeftMs: 10_000,
    }).catch(asError);
    await swallowed;
    expect(end).toMatchObject({ name: 'OutcomeUnknown' });
    const [record] = await recordsOf(db, task);
    expect(record).toMatchObject({ status: 'succeeded', published_at: null });
    await inDeployment(String(record?.['id']));
    expect(await toldOf(String(record?.['id']), logger)).toBe(1);
    await proxy.stop();
  });
});

describe.concurrent('a commit that takes long', () => {
  it('by deferred checks longer than the lease: they belong to the work, and it succeeds', async () => {
    const task = job(async ({ tx }) => (await tx.query('INSERT INTO app.checked VALUES (1)')).rowCount, {
      leaseMs: 2_000,
    });
    expect(await deliver(db.url, task, noon)).toMatchObject({ status: 'succeeded', output: 1 });
  });

  it('by deferred checks longer than its time: it is timed out, and can be cancelled', async () => {
    const insert = job(async ({ tx }) => tx.query('INSERT INTO app.checked VALUES (1)'), {
      timeoutMs: 1_000,
    });
    expect(await deliver(db.url, insert, noon)).toMatchObject({ status: 'timed_out' });
  });

  it('by a synchronous standby that is away for longer than the lease: it succeeds, and is told so once', async () => {
    const folder = await scratchFolder();
    const server = await startServer({ dataDir: join(folder.path, 'server') });
    const own = await freshDatabase({ serverUrl: server.url });
    await own.query(`ALTER DATABASE ${own.name} SET synchronous_commit = on`);
    const set = async (names: string) => {
      await own.query(`ALTER SYSTEM SET synchronous_standby_names = '${names}'`);
      await own.query('SELECT pg_reload_conf()');
      await until(
        async () =>
          (await own.query('SHOW synchronous_standby_names'))[0]?.['synchronous_standby_names'] === names,
      );
    };
    const waiting = async () => own.query(`SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'`);
    const probe = await connectPlain(own.superuserUrl);
    const probes: Promise<unknown>[] = [];
    /** The checkpointer tells the others of the setting, in its own time. */
    const untilCommitsWait = async () =>
      until(async () => {
        const written = probe.query(`SELECT pg_logical_emit_message(true, 'probe', '')`);
        probes.push(written);
        await Promise.race([written, delay(500)]);
        return (await waiting()).length > 0;
      });
    const task = job(
      async () => {
        await set('nobody');
        await untilCommitsWait();
        return 'done';
      },
      { leaseMs: 2_000 },
    );
    const logger = keepingLogger();
    const running = deliver(own.url, task, noon, { coordinator: { logger } });
    await until(async () => (await waiting()).length === 2); // the probe, and the run
    await delay(4_000);
    await set('');
    await Promise.all(probes);
    await probe.end();
    expect(await running).toMatchObject({ status: 'succeeded', output: 'done' });
    expect(logger.lines.map(({ message }) => message)).toEqual([`${task.name} succeeded`]);
    expect(await recordsOf(own, task)).toMatchObject([{ status: 'succeeded', final: true }]);
    await own.drop();
    await server.stop();
    await folder.remove();
  }, 60_000);
});

describe.concurrent('replace ends nobody for a delivery that will not run', () => {
  const paused = async (task: Job) => db.query(`SELECT cronce.pause_job($1, 'ops', 'x', NULL)`, [task.name]);
  const nothing = async () => undefined;

  it.each<[string, Partial<JobOptions>, (task: Job) => Promise<unknown>, object]>([
    ['since its job is paused', {}, paused, { status: 'skipped' }],
    ['since it is too late', { startDeadlineMs: 60_000 }, nothing, { status: 'skipped' }],
    ['or that has a free place', { places: 2 }, nothing, { status: 'succeeded' }],
  ])('%s', async (_why, options, before, expected) => {
    const { opened, open } = gate();
    const task = job(async () => opened, { overlap: 'replace', waitMs: 2_000, ...options });
    const yesterday = Date.now() - 24 * 3_600_000;
    const [slot, next] = [0, 60_000].map((ms) => new Date(yesterday + ms).toISOString());
    const first = deliver(db.url, task, slot ?? '', { delivery: { byHand: true } });
    await insideId(db, task);
    await before(task);
    const second = await deliver(db.url, { ...task, work: async () => 1 }, next ?? '');
    expect(second).toMatchObject(expected);
    open();
    expect(await first).toMatchObject({ status: 'succeeded', cancelRequestedBy: null });
  });
});

it.each([false, true])(
  'a due slot is not given up for another delivery that is about to skip, nor for a dead run: an orphan there: %s',
  async (orphan) => {
    const task = job(async () => 'ran');
    await deliver(db.url, task, noon);
    const round = { job: task.name, witness: new Witness(), gapMs: 7_000 };
    const session = await connect(db.url);
    if (orphan) {
      const other = job(async () => 1, { lock: task.name });
      const dead = await startFarHolder(db, { ...other, work: async () => delay(20_000) }, two, {
        delivery: {},
      });
      dead.cutOff();
      await endBackend(db, dead.runId);
      await untilFree(db, task);
      await db.query('UPDATE cronce.run SET lock_delay_ms = 0 WHERE id = $1', [dead.runId]);
      await dead.stop();
    }
    const late = claimant(session, round, { name: 'a late duplicate', slot: noon });
    await late.next()?.run(); // its T0 has the lock, and is about to skip
    const due = deliver(db.url, task, one);
    await untilWaiting(db, 'cronce.claim(', task.name, one);
    await delay(150);
    await late.next()?.run();
    expect(await due).toMatchObject({ status: 'succeeded', output: 'ran' });
    await session.end();
  },
);

describe.concurrent('waiting for one of several places', () => {
  async function full(waitMs: number) {
    const gates = [gate(), gate()];
    const task = job(async ({ params }) => gates[Number(params)]?.opened, {
      places: 2,
      overlap: 'wait',
      waitMs,
    });
    const holders = [noon, one].map((slot, index) =>
      deliver(db.url, task, slot, { delivery: { params: index } }),
    );
    await Promise.all([insideId(db, task, noon), insideId(db, task, one)]);
    const openAll = async () => {
      for (const { open } of gates) open();
      return Promise.all(holders);
    };
    return { task: { ...task, work: async () => 'in' }, gates, openAll };
  }

  it.each([0, 1])('goes in as soon as any is free: number %s', async (which) => {
    const { task, gates, openAll } = await full(20_000);
    const waiting = deliver(db.url, task, two);
    await untilWaiting(db, 'cronce.claim(', task.name, two);
    gates[which]?.open();
    expect(await waiting).toMatchObject({ status: 'succeeded' });
    await openAll();
  });

  it('two deliveries of one slot don’t turn each other away', async () => {
    const { task, gates, openAll } = await full(20_000);
    const waiting = [deliver(db.url, task, two), deliver(db.url, task, two)];
    await until(async () => (await inTheMiddleOf(db, ['cronce.claim(', task.name, two])).length === 2);
    gates[0]?.open();
    const runs = await Promise.all(waiting);
    expect(runs.map(({ status }) => status).sort()).toEqual(['skipped', 'succeeded']);
    await openAll();
  });
});

describe.concurrent('what is on record', () => {
  it('stays a loss on hold where the outcome could not be stored as it was', async () => {
    const task = job(async ({ signal }) => delay(20_000, undefined, { signal }), {
      afterLost: 'hold',
      leaseMs: 15_000,
    });
    const running = deliver(db.url, task, noon);
    const id = await insideId(db, task);
    const keeper = await connectPlain(db.superuserUrl);
    await keeper.query('BEGIN');
    await keeper.query('SELECT FROM cronce.run WHERE id = $1 FOR UPDATE', [id]);
    await endBackend(db, id);
    await untilBlocked(db, 'cronce.settle(', id);
    await until(
      async () => (await inTheMiddleOf(db, ['cronce.settle(', id, 'could not be stored'])).length > 0,
    );
    await keeper.query('ROLLBACK');
    await keeper.end();
    expect(await running).toMatchObject({ status: 'lost', final: true });
    expect(await deliver(db.url, task, noon)).toMatchObject({ status: 'skipped', skipReason: 'on_hold' });
  });

  it('is a cancel, however the work ends before it has heard of it', async () => {
    for (const [end, how] of [
      [async () => Promise.reject(new Error('of its own')), 'threw'],
      [async () => 1, 'returned'],
    ] as const) {
      const { opened, open } = gate();
      const task = job(async () => opened.then(end), { leaseMs: 15_000 });
      const running = deliver(db.url, task, noon);
      const id = await insideId(db, task);
      await db.query(`SELECT cronce.request_cancel($1, 'ann')`, [id]);
      open();
      expect(await running, how).toMatchObject({
        status: 'cancelled',
        final: true,
        cancelRequestedBy: 'ann',
      });
    }
  });

  it('is one answer, where a cancel by force meets the end of the run', async () => {
    const { opened, open } = gate();
    const task = job(async () => opened, { leaseMs: 15_000 });
    const running = deliver(db.url, task, noon);
    const id = await insideId(db, task);
    const keeper = await connectPlain(db.superuserUrl);
    await keeper.query('BEGIN');
    await keeper.query('SELECT FROM cronce.run WHERE id = $1 FOR UPDATE', [id]);
    open();
    await untilBlocked(db, 'cronce.finish(', id);
    const cancelling = cancel(db, id, 0);
    await untilBlocked(db, 'cronce.request_cancel(', id);
    await keeper.query('ROLLBACK');
    await keeper.end();
    const [ended, answered] = await Promise.all([running, cancelling]);
    expect(answered).toMatchObject({ id, status: ended.status });
    expect(['succeeded', 'cancelled']).toContain(ended.status);
  });

  it('is one answer, where a cancel by force meets a claim that is made again', async () => {
    const task = job(async () => 1);
    const [claimer, canceller, keeper] = await Promise.all(
      [1, 2, 3].map(() => connectPlain(db.superuserUrl)),
    );
    if (!claimer || !canceller || !keeper) throw new Error('no session');
    const runId = uuidV7();
    const request = {
      runId,
      delivery: deliveryFor(task, noon),
      deployment: 'default',
      lock: lockOf(task, noon, null),
      leaseMs,
      lockDelayMs: leaseMs,
      timeLeftMs: 60_000,
      waitMs: 0,
      replace: false,
      gapMs: 7_000,
    };
    const literals = { literal: (text: string) => claimer.escapeLiteral(text) };
    await claimer.query(claimSql(literals, { ...request, again: false }));
    await keeper.query('BEGIN');
    await keeper.query('SELECT FROM cronce.run WHERE id = $1 FOR UPDATE', [runId]);
    const verdict = JSON.stringify({ id: runId, status: 'cancelled', final: true });
    const cancelling = canceller
      .query('SELECT cronce.settle($1::jsonb)', [verdict])
      .then(() => 'answered', String);
    await untilBlocked(db, 'cronce.settle(');
    const claiming = claimer
      .query(claimSql(literals, { ...request, again: true }))
      .then(() => 'answered', String);
    await untilBlocked(db, 'cronce.claim(', runId);
    await keeper.query('ROLLBACK');
    expect(await cancelling).toBe('answered');
    // Its claim is either answered, or was ended by force as the holder of its lock; but it waits for nobody who waits for it.
    expect(await claiming).toMatch(/^answered|terminating connection/);
    expect(await recordsOf(db, task)).toMatchObject([{ status: 'cancelled' }]);
    await Promise.all(
      [claimer.end(), canceller.end(), keeper.end()].map((ended) => ended.catch(() => undefined)),
    );
  });

  it('is heard by the holder with its next heartbeat: settled by someone else, it stops', async () => {
    const stops: unknown[] = [];
    const task = job(async ({ signal }) =>
      delay(20_000, undefined, { signal }).finally(() => stops.push(signal.reason)),
    );
    const running = deliver(db.url, task, noon);
    const id = await insideId(db, task);
    await db.query(
      `SELECT cronce.settle_dead(ARRAY[id], ARRAY[fence], clock_timestamp(), 'by mistake') FROM cronce.run WHERE id = $1`,
      [id],
    );
    expect(await running).toMatchObject({ status: 'lost', error: { name: 'HolderGone' } });
    expect(stops).toEqual([expect.any(Stop)]);
    expect(stops).toMatchObject([{ reason: 'lock_lost' }]);
  });

  it('is no success, where a forgotten statement outruns the job’s time', async () => {
    const task = job(
      async ({ tx }) => {
        void tx.query('SELECT pg_sleep(15)').catch(() => undefined);
        return 1;
      },
      { timeoutMs: 1_500 },
    );
    expect(await deliver(db.url, task, noon)).toMatchObject({
      status: expect.stringMatching(/^(timed_out|failed)$/) as string,
    });
  });
});

it('an orphan of another slot is settled by the next claim, and its lock delay is kept', async () => {
  const task = job(async () => 1);
  const session = await connect(db.url);
  await leaveOrphan(session, task.name, noon);
  await session.end();
  await db.query('UPDATE cronce.run SET lock_delay_ms = 1000 WHERE job = $1', [task.name]);
  const next = await deliver(db.url, task, one);
  expect(next).toMatchObject({ status: 'succeeded', delayedMs: expect.any(Number) as number });
  expect(await recordsOf(db, task, noon)).toMatchObject([{ status: 'lost' }]);
});
