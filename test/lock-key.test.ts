import { afterAll, beforeAll, expect, it } from 'vitest';
import { defineJob, JobError } from '../src/job.ts';
import { lockKey, lockOf } from '../src/lock.ts';
import { freshDatabase, type TestDatabase } from './support/database.ts';

let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

/** Written down once. Another value here means that old and new code no longer exclude each other. */
const golden: [string, bigint][] = [
  ['expire-sessions', -2159144606305367165n],
  ['a', -85014829291761021n],
  ['', -6371864413357686921n],
  ['Ünïcödé ✓', 6228168540068434907n],
  ['job@2026-11-29T12:00:00Z', -7678016379024642300n],
  ['roll-up#1', 69120672089866049n],
  ['x'.repeat(300), -6588408558087335439n],
];

it.each(golden)('the key of %j is the same for ever', async (name, key) => {
  expect(lockKey(name)).toBe(key);
  const [row] = await db.query(`SELECT cronce.lock_key('cronce', $1)::text AS key`, [name]);
  expect(row).toEqual({ key: key.toString() });
  const formula = `SELECT ('x'||encode(substr(sha256(convert_to('cronce:'||$1,'UTF8')),1,8),'hex'))::bit(64)::bigint::text AS key`;
  expect((await db.query(formula, [name]))[0]).toEqual({ key: key.toString() });
});

it('belongs to the lock: one a job, one a slot, several places, a name by params, or a given integer', () => {
  const work = async () => 1;
  const slot = '2026-11-29T12:00:00Z';
  const of = (options: object, params: Parameters<typeof lockOf>[2] = null) =>
    lockOf(defineJob({ name: 'a', work, ...options }), slot, params);
  expect(of({})).toEqual({ name: 'a', keys: [lockKey('a')], guard: null });
  expect(of({ lock: 'shared' })).toEqual({ name: 'shared', keys: [lockKey('shared')], guard: null });
  expect(of({ lock: 42n })).toEqual({ name: 'key 42', keys: [42n], guard: null });
  expect(of({ overlap: 'allow' })).toEqual({ name: `a@${slot}`, keys: [lockKey(`a@${slot}`)], guard: null });
  expect(of({ slots: 2 })).toEqual({
    name: 'a',
    keys: [lockKey('a'), lockKey('a#1')],
    guard: lockKey(`a@${slot}`),
  });
  expect(of({ lock: (params: unknown) => `tenant ${String(params)}` }, 7).name).toBe('tenant 7');
  expect(() => of({ lock: () => 2n ** 63n })).toThrow(JobError);
});
