import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cancelRun } from '../src/cancel.ts';
import { coordinate } from '../src/coordinate.ts';
import { defineJob, type WorkContext } from '../src/job.ts';
import { Session } from '../src/postgres/session.ts';
import { hasPgbouncer, pgbouncerWay, type Road, type Way } from './faults/ways.ts';
import { coordinatorOn, deliveryFor } from './support/coordinator.ts';
import { freshDatabase, type TestDatabase } from './support/database.ts';
import { scratchFolder } from './support/scratch.ts';

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

  it('leaves no lock and no setting behind for the next client of a pooled session', async () => {
    await run(
      job('clean', async () => 1),
      '2026-11-29T12:00:00Z',
    );
    const session = await Session.open(road.target);
    const { rows } = await session.query(
      `SELECT ARRAY(SELECT name FROM pg_settings WHERE setting IS DISTINCT FROM reset_val
                      AND (name LIKE '%timeout' OR name ILIKE '%style' OR name = 'search_path')) AS set,
              (SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND database =
                (SELECT oid FROM pg_database WHERE datname = current_database())) AS locks`,
    );
    await session.close();
    expect(rows).toEqual([{ set: [], locks: 0 }]);
  });
});
