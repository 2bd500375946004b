import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startStandby, type LocalPostgres } from '../../infra/local/postgres.ts';
import { rhythm } from '../../src/path/limits.ts';
import { lockKey } from '../../src/path/lock.ts';
import { UnsendableQuery } from '../../src/postgres/errors.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import {
  asError,
  cancel,
  connectPlain,
  deliver,
  endBackend,
  freeAt,
  job,
  leaseMs,
  noon,
  one,
  Passes,
  recordsOf,
  insideId,
  startFarHolder,
  startHolder,
  sweep,
  two,
  until,
  untilFree,
  vouching,
  type CutOff,
} from '../support/rivals.ts';
import { startProxy } from '../support/proxy.ts';
import { scratchFolder } from '../support/scratch.ts';
import { startServer } from '../support/server.ts';

/**
 * Never two at a time: the times at which check() passed in two runs of one lock don't interleave, whatever has ended
 * the first. A free lock says that its holder's transaction has ended, not that the holder knows.
 */

let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

describe.concurrent(
  'a holder that is cut off has stopped before the next run begins, where it was ended',
  () => {
    it.each<[string, (far: CutOff) => Promise<unknown>]>([
      ['by a cancel without grace', (far) => cancel(db, far.runId, 0)],
      ['by a cancel whose grace it could not hear of', (far) => cancel(db, far.runId, 300)],
      ['by a DBA', (far) => endBackend(db, far.runId)],
      ['by its lease', async () => undefined],
    ])('%s', async (_by, end) => {
      const passes = new Passes();
      const task = job(vouching(passes));
      const far = await startFarHolder(db, task, noon);
      await until(() => passes.of(`${noon}/1`).length > 3);
      far.cutOff();
      await end(far);
      await untilFree(db, task);
      const next = await deliver(db.url, task, one);
      expect(next).toMatchObject({ status: 'succeeded', delayedMs: expect.any(Number) as number });
      await far.stop();
      expect(passes.together()).toEqual([]);
    });

    it('by a pooler that drops its server connection', async () => {
      const passes = new Passes();
      const task = job(vouching(passes));
      const far = await startFarHolder(db, task, noon);
      await until(() => passes.of(`${noon}/1`).length > 3);
      far.cutOff({ serverSide: 'dropped' });
      await untilFree(db, task);
      expect(await deliver(db.url, task, one)).toMatchObject({ status: 'succeeded' });
      await far.stop();
      expect(passes.together()).toEqual([]);
    });

    it('by the run that replaces it', async () => {
      const passes = new Passes();
      const task = job(vouching(passes), { overlap: 'replace', waitMs: 600 });
      const far = await startFarHolder(db, task, noon);
      await until(() => passes.of(`${noon}/1`).length > 3);
      far.cutOff();
      const next = await deliver(db.url, task, one);
      expect(next).toMatchObject({ status: 'succeeded', delayedMs: expect.any(Number) as number });
      expect(await recordsOf(db, task, noon)).toMatchObject([{ status: 'cancelled' }]);
      await far.stop();
      expect(passes.together()).toEqual([]);
    });
  },
);

describe.concurrent('a holder that was ended while it is cut off is waited for by', () => {
  it('another delivery of its slot', async () => {
    const passes = new Passes();
    const task = job(vouching(passes));
    const far = await startFarHolder(db, task, noon);
    far.cutOff();
    await endBackend(db, far.runId);
    await untilFree(db, task);
    expect(await deliver(db.url, task, noon)).toMatchObject({ status: 'succeeded', attempt: 2 });
    await far.stop();
    expect(passes.together()).toEqual([]);
  });

  it('another job that names the same lock, with a shorter lease and no delay of its own', async () => {
    const passes = new Passes();
    const task = job(vouching(passes), { leaseMs: 4_000 });
    const other = job(vouching(passes), { leaseMs: 2_000, lockDelayMs: 0, lock: task.name });
    const far = await startFarHolder(db, task, noon);
    far.cutOff();
    await endBackend(db, far.runId);
    await untilFree(db, task);
    expect(await deliver(db.url, other, one)).toMatchObject({ status: 'succeeded' });
    await far.stop();
    expect(passes.together()).toEqual([]);
  });

  it('a delivery of its slot that gets another place of the lock', async () => {
    const passes = new Passes();
    const task = job(vouching(passes), { places: 2 });
    const [place, otherPlace] = [lockKey(task.name), lockKey(`${task.name}#1`)];
    const first = await startFarHolder(db, job(vouching(new Passes()), { lock: task.name }), two);
    const far = await startFarHolder(db, task, noon);
    await cancel(db, first.runId, 10_000); // the first place comes free
    await first.stop();
    far.cutOff();
    await endBackend(db, far.runId);
    await Promise.all([freeAt(db, place), freeAt(db, otherPlace)]);
    const again = await deliver(db.url, task, noon);
    expect(again).toMatchObject({ status: 'succeeded', attempt: 2, lockKey: place.toString() });
    await far.stop();
    expect(passes.together()).toEqual([]);
  });

  it('each run of the lock, also one after a run that was itself cancelled while it waited', async () => {
    const passes = new Passes();
    const task = job(vouching(passes));
    const far = await startFarHolder(db, task, noon);
    await until(() => passes.of(`${noon}/1`).length > 0);
    far.cutOff();
    await endBackend(db, far.runId);
    await untilFree(db, task);
    const between = deliver(db.url, task, one);
    const answered = await cancel(db, await insideId(db, task, one), 10_000);
    expect(answered).toMatchObject({ status: 'cancelled' });
    await between;
    const last = await deliver(db.url, task, two);
    expect(last).toMatchObject({ status: 'succeeded', delayedMs: expect.any(Number) as number });
    await far.stop();
    expect(passes.of(`${one}/1`), 'it never began its work').toEqual([]);
    expect(passes.together()).toEqual([]);
  });

  it('each run of the lock, also one after a run that was itself killed while it waited', async () => {
    const passes = new Passes();
    const task = job(vouching(passes), { lockDelayMs: 5_000 });
    const brief = job(vouching(passes), { lock: task.name, lockDelayMs: 0 });
    const far = await startFarHolder(db, task, noon);
    far.cutOff();
    await endBackend(db, far.runId);
    await untilFree(db, task);
    const between = deliver(db.url, brief, one);
    await endBackend(db, await insideId(db, brief, one));
    expect(await between).toMatchObject({ status: 'lost' });
    expect(await deliver(db.url, task, two)).toMatchObject({ status: 'succeeded' });
    await far.stop();
    expect(passes.together()).toEqual([]);
  });
});

describe.concurrent('a holder that vouches longer than the server keeps its lock: not one', () => {
  it('whose event loop was blocked while a replacing run ended it by force', async () => {
    const passes = new Passes();
    const options = {
      name: `blocked-${process.pid}`,
      leaseMs: 6_000,
      overlap: 'replace',
      waitMs: 1_000,
    } as const;
    const holder = startHolder({ url: db.url, slot: noon, job: options, work: { blockMs: 3_000 } });
    await holder.said('inside');
    const next = await deliver(db.url, job(vouching(passes), options), one);
    expect(next).toMatchObject({ status: 'succeeded' });
    await holder.said('over');
    for (const word of holder.words) if (word.kind === 'passed') passes.note('the blocked one', word.at);
    expect(passes.of('the blocked one'), 'it could not know yet').toHaveLength(1);
    expect(passes.together()).toEqual([]);
  });

  it('that has tried to send a parameter which its driver can not send: nobody heard of that', async () => {
    const proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
    const passes = new Passes();
    let cutAt = 0;
    const task = job(async ({ check, tx }) => {
      await tx.query('SELECT 1'); // heard and answered
      proxy.partition({ newConnections: 'hang' });
      cutAt = Date.now();
      await delay(400); // less than to the next heartbeat, whose answer it would wait for
      await expect(tx.query('SELECT $1::jsonb', [{ n: 1n }])).rejects.toBeInstanceOf(UnsendableQuery);
      for (;;) {
        check();
        passes.note('after the attempt');
        await delay(20);
      }
    });
    const running = deliver(proxy.url(db.url), task, noon).catch(asError);
    await until(() => passes.of('after the attempt').length > 0);
    await freeAt(db, lockKey(task.name));
    const vouchedMs = leaseMs - rhythm(leaseMs).marginMs;
    expect(passes.last('after the attempt') - cutAt).toBeLessThan(vouchedMs);
    await proxy.stop();
    await running;
  });
});

describe.concurrent('the lock delay', () => {
  it('is on record: how long a run makes the next one wait, and how long that has waited', async () => {
    const task = job(async () => delay(10_000));
    const far = await startFarHolder(db, task, noon);
    far.cutOff();
    await endBackend(db, far.runId);
    await untilFree(db, task);
    const next = await deliver(
      db.url,
      job(async () => 1, { lock: task.name }),
      one,
    );
    await far.stop();
    const [lost] = await recordsOf(db, task, noon);
    expect(lost).toMatchObject({ status: 'lost', lock_delay_ms: leaseMs });
    expect(next).toMatchObject({ status: 'succeeded', lockDelayMs: leaseMs });
    expect(next.delayedMs).toBeGreaterThan(0);
    expect(next.delayedMs).toBeLessThanOrEqual(leaseMs);
  });

  it('of 0 is none: what writes in the database alone may begin while the last holder still vouches for itself', async () => {
    const passes = new Passes();
    const task = job(vouching(passes), { lockDelayMs: 0 });
    const far = await startFarHolder(db, task, noon);
    far.cutOff();
    await endBackend(db, far.runId);
    await untilFree(db, task);
    const next = await deliver(db.url, task, one);
    expect(next).toMatchObject({ status: 'succeeded', delayedMs: null, lockDelayMs: 0 });
    await far.stop();
  });

  it.each<[string, string, Parameters<typeof job>[0], Parameters<typeof job>[1]]>([
    ['succeeded', 'returned', async () => 1, {}],
    ['failed', 'threw', async () => Promise.reject(new Error('no')), {}],
    [
      'timed_out',
      'stopped at its deadline',
      async ({ signal }) => delay(9_000, undefined, { signal }),
      { timeoutMs: 300 },
    ],
  ])('is none after a run that ended by its own hand: %s', async (status, _how, work, options) => {
    const task = job(work, options);
    expect(await deliver(db.url, task, noon)).toMatchObject({ status });
    expect(await deliver(db.url, { ...task, work: async () => 1 }, one)).toMatchObject({
      status: 'succeeded',
      delayedMs: null,
    });
  });

  it('is none after a run that heard of its cancel and stopped, even where it was then ended by force', async () => {
    for (const graceMs of [10_000, 0]) {
      const task = job(async ({ signal }) => delay(20_000, undefined, { signal }));
      const running = deliver(db.url, task, noon);
      await cancel(db, await insideId(db, task), graceMs);
      expect(await running).toMatchObject({ status: 'cancelled' });
      expect(await deliver(db.url, { ...task, work: async () => 1 }, one)).toMatchObject({
        status: 'succeeded',
        delayedMs: null,
      });
    }
  });

  it('follows a run that was cut off at its deadline, since its work may still go on', async () => {
    const task = job(async () => delay(4_000), { timeoutMs: 200 });
    expect(await deliver(db.url, task, noon)).toMatchObject({ status: 'timed_out' });
    const next = await deliver(db.url, { ...task, work: async () => 1 }, one);
    expect(next).toMatchObject({ status: 'succeeded', delayedMs: expect.any(Number) as number });
  });

  it('takes nothing of the next run’s own time', async () => {
    const task = job(
      async ({ signal, attempt }) => delay(attempt === 1 ? 20_000 : 1_000, 'all', { signal }),
      {
        timeoutMs: 2_000,
      },
    );
    const running = deliver(db.url, task, noon);
    await endBackend(db, await insideId(db, task));
    expect(await running).toMatchObject({ status: 'lost' });
    await db.query(
      `UPDATE cronce.run SET delay_until = clock_timestamp() + interval '3 s' WHERE job = $1 AND status = 'lost'`,
      [task.name],
    ); // as though it had not heard of its end
    const next = await deliver(db.url, task, noon);
    expect(next).toMatchObject({ status: 'succeeded', output: 'all' });
    expect(next.delayedMs).toBeGreaterThan(2_000);
  });

  it('that leaves too little time has the run give way: no attempt is used, and the sweep delivers it again', async () => {
    const task = job(vouching(new Passes()), { retries: 0 });
    const far = await startFarHolder(
      db,
      job(async () => delay(10_000), { lock: task.name }),
      noon,
    );
    far.cutOff();
    await endBackend(db, far.runId);
    await untilFree(db, task);
    const early = await deliver(db.url, task, one, { timeLeftMs: 4_000 + leaseMs / 2 });
    expect(early).toMatchObject({
      status: 'skipped',
      skipReason: 'held',
      final: false,
      blockedBy: far.runId,
    });
    expect(early).toMatchObject({ attempt: null, fence: null });
    const { runs } = await sweep(db, [task]);
    expect(runs).toMatchObject([{ slot: one, status: 'succeeded', attempt: 1 }]);
    await far.stop();
  });
});

describe.concurrent('a lock whose places change from one deployment to the next', () => {
  it.each([
    ['more', 1, 2],
    ['fewer', 2, 1],
  ])('keeps the deliveries of one slot apart: %s', async (_change, before, after) => {
    let inside = 0;
    let most = 0;
    let goOn: () => void = () => undefined;
    const goneOn = new Promise<void>((resolve) => (goOn = resolve));
    const old = job(
      async () => {
        most = Math.max(most, ++inside);
        await goneOn;
        inside -= 1;
      },
      { places: before },
    );
    const elsewhere =
      before === 2 ? await startFarHolder(db, job(vouching(new Passes()), { lock: old.name }), two) : null;
    const first = deliver(db.url, old, noon);
    await until(() => inside === 1);
    if (elsewhere) {
      await cancel(db, elsewhere.runId, 10_000);
      await elsewhere.stop();
    }
    // Long after its start: then only its locks tell of it.
    await db.query(`UPDATE cronce.run SET claimed_at = claimed_at - interval '1 hour' WHERE job = $1`, [
      old.name,
    ]);
    const again = await deliver(db.url, { ...old, places: after }, noon);
    expect(again).toMatchObject({ status: 'skipped', skipReason: 'held' });
    goOn();
    expect(await first).toMatchObject({ status: 'succeeded' });
    expect(most).toBe(1);
  });
});

it('two places and three deliveries at once, two of them of one slot: each slot gets its run', async () => {
  const turnedAway: unknown[] = [];
  const lane = async () => {
    const task = job(async () => 1, { places: 2 });
    for (let round = 0; round < 25; round++) {
      const [a, b] = [0, 30].map((minute) => new Date(Date.UTC(2026, 0, 1, round, minute)).toISOString());
      const runs = await Promise.all([a, a, b].map((slot) => deliver(db.url, task, slot ?? '')));
      const succeeded = new Set(runs.filter(({ status }) => status === 'succeeded').map(({ slot }) => slot));
      if (succeeded.size < 2)
        turnedAway.push(runs.map(({ slot, status, skipReason }) => [slot, status, skipReason]));
    }
  };
  await Promise.all(Array.from({ length: 8 }, lane));
  expect(turnedAway).toEqual([]);
}, 60_000);

describe.concurrent('a server that goes away under a cut-off holder', () => {
  async function withServer(
    body: (server: LocalPostgres, own: TestDatabase, folder: string) => Promise<void>,
  ) {
    const folder = await scratchFolder();
    const server = await startServer({ dataDir: join(folder.path, 'server') });
    try {
      const own = await freshDatabase({ serverUrl: server.url });
      await body(server, own, folder.path);
      await own.drop();
    } finally {
      await server.stop();
      await folder.remove();
    }
  }

  /** As the server does when any of its processes dies: it ends all, and recovers. */
  async function crash(own: TestDatabase): Promise<void> {
    const victim = await connectPlain(own.url);
    const { rows } = await victim.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
    process.kill(rows[0]?.pid ?? NaN, 'SIGKILL');
    await victim.end().catch(() => undefined);
    await until(async () => own.query('SELECT 1').catch(() => null));
  }

  it.each<[string, (server: LocalPostgres, own: TestDatabase) => Promise<void>]>([
    ['as a crash of one backend takes all with it', async (_server, own) => crash(own)],
    ['as it is restarted', async (server) => server.restart('fast')],
    ['as it is restarted in a hurry', async (server) => server.restart('immediate')],
  ])(
    '%s: the next run begins when that one has stopped',
    async (_how, goAway) => {
      await withServer(async (server, own) => {
        const passes = new Passes();
        const task = job(vouching(passes));
        const far = await startFarHolder(own, task, noon);
        await until(() => passes.of(`${noon}/1`).length > 3);
        far.cutOff();
        await goAway(server, own);
        // The first to come ends within its delay, and has forgiven nothing by that.
        expect(await deliver(own.url, task, two, { timeLeftMs: 4_500 })).toMatchObject({
          skipReason: 'held',
          final: false,
        });
        expect(await deliver(own.url, task, one)).toMatchObject({ status: 'succeeded' });
        await far.stop();
        expect(passes.together()).toEqual([]);
      });
    },
    60_000,
  );

  it('and whose standby is promoted: the next run, there, begins when that one has stopped', async () => {
    await withServer(async (server, own, folder) => {
      const passes = new Passes();
      const task = job(vouching(passes));
      const standby = await startStandby(server, { dataDir: join(folder, 'standby') });
      try {
        const there = new URL(own.url);
        there.port = String(standby.port);
        const far = await startFarHolder(own, task, noon);
        const [{ lsn } = {}] = await own.query('SELECT pg_current_wal_lsn()::text AS lsn');
        const look = await connectPlain(standby.url);
        await until(async () => {
          const { rows } = await look.query<{ has: boolean }>(
            'SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn AS has',
            [lsn],
          );
          return rows[0]?.has;
        });
        far.cutOff();
        await server.kill();
        await look.query('SELECT pg_promote()');
        await look.end();
        expect(await deliver(there.href, task, one)).toMatchObject({ status: 'succeeded' });
        await far.stop();
        expect(passes.together()).toEqual([]);
      } finally {
        await standby.stop();
        await server.restart('fast');
      }
    });
  }, 90_000);
});
