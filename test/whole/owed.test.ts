import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { defineJob, type Job, type JobOptions } from '../../src/job.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { deliver, job, noon, recordsOf, sweep } from '../support/rivals.ts';

/** What is owed is not lost: neither in the order of two records, nor behind other jobs, nor with a changed schedule. */

let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

/** A deployment of its own, in virtual time. */
function world() {
  const deployment = `owed-${randomUUID()}`;
  return {
    deployment,
    /** One pass of its sweep, which runs in place what it delivers. */
    at: async (time: string, jobs: readonly Job[]) => {
      const { runs, own } = await sweep(db, jobs, { deployment, clock: () => new Date(time), gapMs: 0 });
      expect(own).toMatchObject({ status: 'succeeded' });
      return runs;
    },
    records: async (task: Job, status: string) => {
      const rows = await db.query(
        `SELECT slot FROM cronce.run WHERE deployment = $1 AND job = $2 AND status = $3 ORDER BY scheduled_for, id`,
        [deployment, task.name, status],
      );
      return rows.map(({ slot }) => String(slot).slice(11, 16));
    },
  };
}

function hourly(options: Partial<JobOptions> = {}): Job {
  return defineJob({
    name: `rep-${randomUUID().slice(0, 8)}`,
    schedule: 'cron(0 * * * ? *)',
    work: async () => 1,
    ...options,
  });
}

describe.concurrent('a slot that is owed', () => {
  it('and whose catch-up was lost is delivered again, though it was recorded as missed after that', async () => {
    const { at } = world();
    let dies = true;
    const task = hourly({
      catchUp: 'all',
      leaseMs: 2_000,
      lockDelayMs: 0,
      work: async ({ tx }) => (dies ? tx.query('SELECT pg_terminate_backend(pg_backend_pid())') : 1),
    });
    await at('2026-11-20T10:35:00Z', [task]);
    const first = await at('2026-11-20T13:06:00Z', [task]);
    expect(first.map(({ status }) => status)).toContain('lost');
    dies = false;
    const later: string[] = [];
    for (const time of ['13:20', '13:35', '13:50'])
      later.push(
        ...(await at(`2026-11-20T${time}:00Z`, [task]))
          .filter(({ status }) => status === 'succeeded')
          .map(({ slot }) => slot),
      );
    expect(later.sort()).toEqual(['11', '12', '13'].map((hour) => `2026-11-20T${hour}:00:00Z`));
  });

  it('is accounted for, though its schedule was changed before any sweep had done so', async () => {
    const { at, records } = world();
    const before = hourly();
    const after = { ...before, schedules: hourly({ schedule: 'cron(30 * * * ? *)' }).schedules };
    await at('2026-11-20T10:35:00Z', [before]);
    await at('2026-11-20T11:02:00Z', [before]); // 11:00 may still come
    await at('2026-11-20T11:07:00Z', [after]);
    await at('2026-11-20T12:07:00Z', [after]);
    expect(await records(before, 'missed')).toEqual(['11:00', '11:30']);
  });

  it('does not starve behind those of a job that is gone', async () => {
    const { deployment, at } = world();
    const task = hourly();
    await db.query(
      `INSERT INTO cronce.run (id, deployment, job, slot, scheduled_for, trigger, status, lock_name, lock_key, fence, attempt,
         max_attempts, final, received_at, started_at, finished_at)
       SELECT gen_random_uuid(), $1, CASE WHEN n = 0 THEN $2 ELSE 'gone' END,
         to_char(d AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), d, 'rule', 'failed', 'gone', 2, n + 1, 1, 3, false,
         timestamptz '2026-11-20 08:00Z', timestamptz '2026-11-20 08:00Z', timestamptz '2026-11-20 08:00Z'
       FROM generate_series(0, 600) n,
         LATERAL (SELECT timestamptz '2026-11-20 07:00Z' - n * interval '1 s' AS d) at`,
      [deployment, task.name],
    );
    expect(await at('2026-11-20T10:35:00Z', [task])).toMatchObject([
      { slot: '2026-11-20T07:00:00Z', status: 'succeeded' },
    ]);
  });

  it('where only the latest is wanted is one, however long the outage and however many passes it takes', async () => {
    const { at } = world();
    const task = hourly({ schedule: 'cron(* * * * ? *)', catchUp: 'one' });
    await at('2026-11-20T00:00:00Z', [task]);
    const runs = [];
    for (const minute of ['00', '05', '10', '15'])
      runs.push(...(await at(`2026-11-21T01:${minute}:00Z`, [task])));
    // Each pass's latest is of the time since the pass before: the outage itself owes one.
    expect(runs.filter(({ slot }) => slot < '2026-11-21T00:56')).toMatchObject([
      { slot: '2026-11-21T00:55:00Z' },
    ]);
  }, 60_000);
});

it('retention deletes old runs of a job whose slots may overlap, and with them their locks', async () => {
  const [overlapping, plain] = [job(async () => 1, { overlap: 'allow' }), job(async () => 1)];
  for (let hour = 0; hour < 4; hour++)
    for (const task of [overlapping, plain])
      await deliver(db.url, task, new Date(Date.parse(noon) + hour * 3_600_000).toISOString());
  const names = [overlapping.name, plain.name];
  await db.query(
    `UPDATE cronce.run SET started_at = now() - interval '100 days', finished_at = now() - interval '100 days' WHERE job = ANY ($1)`,
    [names],
  );
  await sweep(db, [], { deployment: 'default' });
  for (const task of [overlapping, plain]) expect(await recordsOf(db, task)).toHaveLength(1);
  const locks = await db.query('SELECT name FROM cronce.lock WHERE name LIKE ANY ($1)', [
    names.map((name) => `${name}%`),
  ]);
  expect(locks).toHaveLength(2);
});
