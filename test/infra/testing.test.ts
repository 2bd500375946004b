/** `cronce/testing`, as the author of a job uses it. */
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { z } from 'zod';
import { openTestbed, type Testbed } from '../../infra/testing.ts';
import { defineJob, type JobOptions } from '../../src/job.ts';
import { PermanentError } from '../../src/run.ts';
import { freshDatabase } from '../support/database.ts';

let bed: Testbed;
beforeAll(async () => {
  bed = await openTestbed({
    schema: `CREATE TABLE session (id integer PRIMARY KEY, expires_at timestamptz NOT NULL);
             CREATE TABLE once (id integer PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)`,
  });
});
afterAll(async () => bed.close());

const job = (work: JobOptions['work'], options: Partial<JobOptions> = {}) =>
  defineJob({ name: 'tidy', ...options, work });

async function rows(sql: string): Promise<unknown[]> {
  const client = new pg.Client({ connectionString: bed.url });
  await client.connect();
  return client
    .query(sql)
    .then(({ rows: found }) => found as unknown[])
    .finally(async () => client.end());
}

const expire = job(async ({ tx, scheduledFor }) => {
  const { rowCount } = await tx.query('DELETE FROM session WHERE expires_at < $1', [scheduledFor]);
  return { deleted: rowCount };
});

it('runs the work on the rows that are given, shows what it wrote, and leaves nothing', async () => {
  const run = await bed.run(expire, {
    scheduledFor: '2027-01-01T00:00:00Z',
    given: async (tx) => tx.query(`INSERT INTO session VALUES (1, '2026-12-31'), (2, '2027-01-02')`),
    see: async (tx) => (await tx.query('SELECT id FROM session')).rows,
  });
  expect(run).toEqual({
    status: 'succeeded',
    output: { deleted: 1 },
    error: null,
    final: true,
    seen: [{ id: 2 }],
  });
  expect(await rows('SELECT * FROM session')).toEqual([]);
});

it('leaves nothing of what fenced wrote, nor does a part of it that failed stay', async () => {
  const work = job(async ({ fenced, tx }) => {
    await fenced((own) => own.query(`INSERT INTO session VALUES (1, now())`));
    await fenced(async (own) => {
      await own.query(`INSERT INTO session VALUES (2, now())`);
      throw new Error('no');
    }).catch(() => undefined);
    return (await tx.query('SELECT id FROM session')).rows;
  });
  expect((await bed.run(work)).output).toEqual([{ id: 1 }]);
  expect(await rows('SELECT * FROM session')).toEqual([]);
});

it('gives what a run gives: slot, attempt, params, key, fence', async () => {
  const shown = job(
    async ({ job: name, slot, attempt, params, idempotencyKey, fence, scheduledFor, check, timeLeftMs }) => {
      check();
      return {
        name,
        slot,
        attempt,
        params,
        idempotencyKey,
        fence,
        scheduledFor,
        left: timeLeftMs() > 290_000,
      };
    },
  );
  const { output } = await bed.run(shown, {
    scheduledFor: new Date('2027-01-01T00:00:00Z'),
    attempt: 2,
    params: { a: 1 },
  });
  expect(output).toEqual({
    name: 'tidy',
    slot: '2027-01-01T00:00:00Z',
    attempt: 2,
    params: { a: 1 },
    idempotencyKey: 'tidy/2027-01-01T00:00:00Z',
    fence: '1',
    scheduledFor: '2027-01-01T00:00:00.000Z',
    left: true,
  });
});

it('sets the clock for the work alone', async () => {
  const told = job(async () => new Date().toISOString());
  expect((await bed.run(told, { now: '2031-05-05T05:05:05Z' })).output).toBe('2031-05-05T05:05:05.000Z');
  expect(
    (
      await bed.run(
        job(async () => Promise.reject(new Error('x'))),
        { now: '2031-05-05' },
      )
    ).status,
  ).toBe('failed');
  expect(new Date().getFullYear()).toBeLessThan(2031);
});

describe('says what a run would have on record', () => {
  it('of an error, and of one that is for good', async () => {
    const failed = await bed.run(job(async ({ tx }) => tx.query('SELECT 1/0')));
    expect(failed).toMatchObject({ status: 'failed', final: false, error: { code: '22012' } });
    const never = await bed.run(job(async () => Promise.reject(new PermanentError('never'))));
    expect(never).toMatchObject({ status: 'failed', final: true, error: { message: 'never' } });
  });

  it('of a constraint that is checked with the commit', async () => {
    const twice = job(async ({ tx }) => tx.query('INSERT INTO once VALUES (1), (1)'));
    expect(await bed.run(twice)).toMatchObject({ status: 'failed', error: { code: '23505' } });
  });

  it('of params that don’t fit', async () => {
    const typed = defineJob({
      name: 'typed',
      params: z.object({ n: z.number() }),
      work: async ({ params }) => params.n,
    });
    expect((await bed.run(typed, { params: { n: 4 } })).output).toBe(4);
    expect(await bed.run(typed, { params: { n: 'four' } })).toMatchObject({ status: 'failed', final: true });
  });

  it.each([
    ['lock_lost', 'lost'],
    ['deadline', 'timed_out'],
    ['cancelled', 'cancelled'],
  ] as const)('of a stop by %s: %s', async (reason, status) => {
    const long = job(async ({ signal }) => sleep(20_000, undefined, { signal }));
    expect((await bed.run(long, { stop: { reason, afterMs: 50 } })).status).toBe(status);
  });

  it('of work that takes longer than its job’s time', async () => {
    const long = job(async ({ signal }) => sleep(20_000, undefined, { signal }), { timeoutMs: 100 });
    expect((await bed.run(long)).status).toBe('timed_out');
  });

  it('of a transaction that the work tried to end', async () => {
    expect((await bed.run(job(async ({ tx }) => tx.query('COMMIT AND CHAIN')))).status).toBe('failed');
  });
});

it('throws what the test’s own steps throw', async () => {
  const fine = job(async () => 1);
  await expect(bed.run(fine, { given: async (tx) => tx.query('SELECT nonsense') })).rejects.toThrow(
    'nonsense',
  );
  const see = vi.fn(async () => Promise.reject(new Error('mine')));
  await expect(bed.run(fine, { see })).rejects.toThrow('mine');
});

it('takes a database of one’s own, and leaves it as it was', async () => {
  const db = await freshDatabase({ migrated: false });
  try {
    const own = await openTestbed({ url: db.url });
    const run = await own.run(
      job(async ({ tx }) => (await tx.query('SELECT current_database() AS name')).rows),
    );
    await own.close();
    expect(run.output).toEqual([{ name: new URL(db.url).pathname.slice(1) }]);
    expect(await db.query('SELECT 1 AS alive')).toEqual([{ alive: 1 }]);
  } finally {
    await db.drop();
  }
});
