import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { defineJob, JobError } from '../src/job.ts';
import { lockKey, LockNameError, lockOf } from '../src/path/lock.ts';
import type { Json } from '../src/run.ts';
import { captureValue } from '../src/capture.ts';
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

const work = async () => 1;
const slot = '2026-11-29T12:00:00Z';
const guard = lockKey(`a@${slot}`);
const locked = (options: object, params: Json = null) =>
  lockOf(defineJob({ name: 'a', work, ...options }), slot, params);

it('belongs to the lock: one a job, one a slot, several places, a name by params, or a given integer', () => {
  expect(locked({})).toEqual({ name: 'a', keys: [lockKey('a')], guard });
  expect(locked({ lock: 'shared' })).toEqual({ name: 'shared', keys: [lockKey('shared')], guard });
  expect(locked({ lock: 42n })).toEqual({ name: 'key 42', keys: [42n], guard });
  expect(locked({ overlap: 'allow' })).toEqual({ name: `a@${slot}`, keys: [guard], guard });
  expect(locked({ places: 2 })).toEqual({ name: 'a', keys: [lockKey('a'), lockKey('a#1')], guard });
  const byTenant = { lock: (params: unknown) => `tenant ${String(params)}` };
  expect(locked(byTenant, 7)).toEqual({ name: 'tenant 7', keys: [lockKey('tenant 7')], guard });
});

describe('E6: a lock by params', () => {
  const asText = { lock: (params: Json) => JSON.stringify(params) };

  it('is the same for any order of keys', () => {
    const one = { b: [{ y: 1, x: 2 }], a: { d: null, c: '2' }, 10: 1, 9: 2 };
    const other = { 9: 2, 10: 1, a: { c: '2', d: null }, b: [{ x: 2, y: 1 }] };
    expect(locked(asText, one)).toEqual(locked(asText, other));
    const own = JSON.parse('{"b":1,"__proto__":{"z":1,"a":2}}') as Json;
    expect(locked(asText, own).name).toBe('{"__proto__":{"a":2,"z":1},"b":1}');
  });

  it('is the same once PostgreSQL has stored the params', async () => {
    const property = fc.asyncProperty(fc.jsonValue({ maxDepth: 4 }), async (value) => {
      const params = captureValue(value);
      const [row] = await db.query('SELECT $1::jsonb AS params', [JSON.stringify(params)]);
      const canonicalText = { lock: (given: Json) => lockKey(JSON.stringify(given)) };
      expect(locked(canonicalText, row?.['params'] as Json)).toEqual(locked(canonicalText, params));
    });
    await fc.assert(property, { seed: 20261129, numRuns: 200 });
  });

  it('can’t change the params that the work is given', () => {
    const params = { list: [1], deep: { a: 1 } };
    const changing = [
      (given: Json) => String((given as { list: number[] }).list.push(2)),
      (given: Json) => String(((given as { deep: { a: number } }).deep.a = 2)),
      (given: Json) => String(((given as { x: number }).x = 2)),
    ];
    for (const lock of changing) expect(() => locked({ lock }, params)).toThrow(LockNameError);
    expect(params).toEqual({ list: [1], deep: { a: 1 } });
  });
});

describe('E5: a lock function', () => {
  const refused = (lock: unknown, params: Json = null) => {
    try {
      locked({ lock }, params);
    } catch (error) {
      if (error instanceof LockNameError) return error;
      throw error;
    }
    return expect.fail('it names a lock');
  };

  it('that throws fails with the job’s name, and the cause', () => {
    const error = refused((params: { tenant: { id: string } }) => `tenant:${params.tenant.id}`);
    expect(error).toBeInstanceOf(JobError);
    expect(error.name).toBe('LockNameError');
    expect(error.job).toBe('a');
    expect(error.message).toBe(
      'job "a": its lock function threw; let it name a lock for any params, also for null',
    );
    expect(error.cause).toBeInstanceOf(TypeError);
    const nothing: unknown = undefined;
    expect(
      refused(() => {
        throw nothing;
      }).cause,
    ).toBe(undefined);
  });

  it.each([
    [undefined, 'undefined'],
    [null, 'null'],
    ['', '""'],
    [727361004, '727361004'],
    [NaN, 'NaN'],
    [true, 'true'],
    [{ id: 1 }, '{ id: 1 }'],
    [['a'], "[ 'a' ]"],
    [Symbol('a'), 'Symbol(a)'],
    ['a\u0000b', '"a\\u0000b"'],
    ['\ud800', '"\\ud800"'],
    [2n ** 63n, '9223372036854775808n'],
    [-(2n ** 63n) - 1n, '-9223372036854775809n'],
    [new String('a'), "[String: 'a']"],
  ])('that answers %o names no lock', (answer, shown) => {
    expect(refused(() => answer).message).toMatch(
      `job "a": its lock function answered ${shown}; allowed: a name of 1 to 200 characters`,
    );
  });

  it('that answers a number, a promise or too much is told what to write', () => {
    expect(refused(() => 727361004).message).toMatch(/; write 727361004n$/);
    expect(refused(async () => 'a').message).toMatch(/; it can’t be async$/);
    expect(refused(() => Promise.reject(new Error('unheard'))).message).toMatch(/; it can’t be async$/);
    expect(refused(() => 'x'.repeat(201)).message.length).toBeLessThan(500);
  });

  it('may answer any name and key that there is', () => {
    for (const name of ['a', 'x'.repeat(200), 'Ünïcödé ✓'])
      expect(locked({ lock: () => name }).keys).toEqual([lockKey(name)]);
    for (const key of [0n, -(2n ** 63n), 2n ** 63n - 1n])
      expect(locked({ lock: () => key }).keys).toEqual([key]);
  });
});
