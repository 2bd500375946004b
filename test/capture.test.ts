import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { captureError, captureText, captureValue, isA } from '../src/capture.ts';
import { coordinate } from '../src/coordinate.ts';
import { defineJob } from '../src/job.ts';
import { coordinatorOn, deliveryFor } from './support/coordinator.ts';
import { freshDatabase, type TestDatabase } from './support/database.ts';
import { acquainted, aggregated, chainOf, errors, friends, hostileFrom, values } from './support/hostile.ts';
import { randomFrom } from './support/random.ts';

const sizeOf = (json: unknown) => Buffer.byteLength(JSON.stringify(json));

describe('D1: what is thrown', () => {
  it.each(errors)('keeps what it can of %s', (_what, make) => {
    const error = captureError(make());
    expect(error).toMatchObject({
      name: expect.any(String) as string,
      message: expect.any(String) as string,
    });
    expect(error.name).not.toBe('NonError');
    expect(sizeOf(error)).toBeLessThanOrEqual(64 * 1024);
  });

  it('keeps a message that is no text as JSON, and a number as the name', () => {
    const message = (said: unknown) => captureError(Object.assign(new Error(), { message: said })).message;
    expect(message(['a', 1])).toBe('["a",1]');
    expect(message({ a: 1n })).toBe('{"a":"1"}');
    expect(captureError(Object.assign(new Error('m'), { name: 42 }))).toMatchObject({
      name: '42',
      message: 'm',
    });
  });

  it('names the class of an error that has no name of its own, and no other', () => {
    class PaymentDeclined extends TypeError {}
    class Named extends Error {
      override readonly name = 'OtherName';
    }
    expect(captureError(new PaymentDeclined('no')).name).toBe('PaymentDeclined');
    expect(captureError(new Named('no')).name).toBe('OtherName');
    expect(captureError(new RangeError('no')).name).toBe('RangeError');
  });

  it('keeps the fields of an SQL error that are text, and a code that is a number', () => {
    const told = {
      code: '23505',
      detail: 'Key (id)=(1) exists.',
      constraint: 'a_pkey',
      table: 'a',
      column: 7,
    };
    const { column, ...kept } = told;
    expect(captureError(Object.assign(new Error('twice'), told))).toMatchObject(kept);
    expect(captureError(Object.assign(new Error('twice'), told))).not.toHaveProperty('column', column);
    expect(captureError(Object.assign(new Error('gone'), { code: 404 }))).toHaveProperty('code', '404');
  });

  it.each([
    [undefined, 'null'],
    [null, 'null'],
    [0, '0'],
    ['', ''],
    ['text', 'text'],
    [{ a: [1] }, '{"a":[1]}'],
    [{ name: 'N', message: 'm', stack: 's' }, '{"name":"N","message":"m","stack":"s"}'],
    [() => 1, '[Function: anonymous]'],
    [Promise.resolve(), '[Promise]'],
  ])('takes %o for no error, and keeps its content', (thrown, message) => {
    expect(captureError(thrown)).toEqual({ name: 'NonError', message });
  });

  it('marks circles and depth, and shows an error twice where that is all', () => {
    const circle = new Error('outer');
    circle.cause = new Error('inner', { cause: circle });
    expect(captureError(circle)).toMatchObject({
      cause: { message: 'inner', cause: { message: '[cut: circular]' } },
    });
    expect(JSON.stringify(captureError(chainOf(10_000)))).toContain('[cut: too deep]');
    const same = new Error('same');
    expect(captureError(new AggregateError([same, same]))).toMatchObject({
      errors: [{ message: 'same' }, { message: 'same' }],
    });
  });
});

describe('D2: what is returned', () => {
  it.each([...values, ...errors])('answers JSON, bounded and well-formed: %s', (_what, make) => {
    const text = JSON.stringify(captureValue(make()));
    expect(Buffer.byteLength(text)).toBeLessThanOrEqual(256 * 1024);
    expect(text.isWellFormed()).toBe(true);
    expect(text).not.toContain('\\u0000');
  });

  it.each([
    ['what it has', { a: [0, false, '', null, undefined], u: undefined }, { a: [0, false, '', null, null] }],
    [
      'a getter that throws',
      {
        get bad() {
          throw new Error('boom');
        },
        good: 1,
      },
      { bad: '[cut: unreadable: Error: boom]', good: 1 },
    ],
    [
      '__proto__ as a plain key',
      JSON.parse('{"__proto__":{"a":1}}') as unknown,
      JSON.parse('{"__proto__":{"a":1}}') as unknown,
    ],
    ['keys that become alike', { '\ud800': 1, '\udc00': 2 }, { '\ufffd': 1, '\ufffd~2': 2 }],
    ['a Map with keys of objects', new Map([[{ k: 1 }, 'v']]), [[{ k: 1 }, 'v']]],
    ['bytes', [Buffer.from('ab'), new Uint16Array([1, 2])], [{ type: 'Buffer', data: [97, 98] }, [1, 2]]],
    ['boxed values', [Object('s'), Object(1n), Object(2)], ['s', '1', 2]],
    ['an error', { e: new Error('m') }, { e: { name: 'Error', message: 'm' } }],
    ['a date', [new Date(0), new Date(NaN)], ['1970-01-01T00:00:00.000Z', 'Invalid Date']],
  ])('keeps %s', (_what, value, kept) => {
    expect(captureValue(value)).toEqual(kept);
  });

  it('shows a thing again where it is shown whole, and marks it where it goes in circles', () => {
    const point = { x: 1 };
    expect(captureValue({ a: point, b: { c: point } })).toEqual({ a: { x: 1 }, b: { c: { x: 1 } } });
    const circle: Record<string, unknown> = { n: 1 };
    circle['self'] = circle;
    expect(captureValue([circle, circle])).toEqual([{ n: 1, self: '[cut: circular]' }, '[cut: repeated]']);
  });

  it('reads no more of endless things than it keeps', () => {
    let reads = 0;
    const endless = (): object =>
      new Proxy({}, { ownKeys: () => ['a', 'b'], get: () => (reads++, endless()) });
    captureValue(endless());
    expect(reads).toBeLessThan(100_000);
  });

  it('cuts a text at a whole letter, and says what is missing', () => {
    expect(captureText(`${'x'.repeat(65_535)}😀`)).toBe(`${'x'.repeat(65_535)}[cut: 2 more]`);
    expect(captureText('a\u0000\ud800')).toBe('a\ufffd\ufffd');
  });

  it('keeps the beginning of what is too large', () => {
    const kept = captureValue(Array<string>(900).fill('y'.repeat(1_000))) as string[];
    expect(kept[0]).toBe('y'.repeat(1_000));
    expect(kept.at(-1)).toMatch(/^\[cut: \d+ more]$/);
  });
});

describe('D3, D4: what points at each other, and errors of errors', () => {
  it('says of 30 users and 8 groups, and of friends, each once', () => {
    const text = JSON.stringify(captureValue(acquainted(30, 8)));
    for (let n = 0; n < 30; n++) expect(text).toContain(`"u${n}"`);
    const all = JSON.stringify(captureValue(friends(14)));
    for (let n = 0; n < 14; n++) expect(all).toContain(`"f${n}"`);
    expect(all.length).toBeLessThan(64 * 1024);
  });

  it.each([[[20, 20]], [[20, 20, 20]], [[5, 5, 5, 5, 5, 5]]])('bounds an AggregateError of %j', (sizes) => {
    const error = captureError(aggregated(...sizes));
    expect(sizeOf(error)).toBeLessThanOrEqual(64 * 1024);
    expect(error.errors?.[0]).toMatchObject({ name: 'AggregateError' });
  });

  it('F5: bounds causes with long messages, and keeps the outermost whole', () => {
    const error = captureError(new Error('x'.repeat(16_000), { cause: chainOf(8, 'y'.repeat(40_000)) }));
    expect(error.message).toBe('x'.repeat(16_000));
    expect(error.cause?.message).toMatch(/^y+\[cut: \d+ more]$/);
    expect(sizeOf(error)).toBeLessThanOrEqual(64 * 1024);
  });
});

it('asks for a class without trusting the thing', () => {
  const { proxy, revoke } = Proxy.revocable(new Error('x'), {});
  expect(isA(proxy, Error)).toBe(true);
  revoke();
  expect(isA(proxy, Error)).toBe(false);
});

describe('whatever it is', () => {
  interface Found {
    captured: number;
    slowest: { ms: number; what: string };
    bad: string[];
  }
  const child = async (heapMb: number, count: number): Promise<Found> => {
    const args = [
      `--max-old-space-size=${heapMb}`,
      '--import',
      'tsx',
      'test/support/capture-child.ts',
      '20',
      `${count}`,
    ];
    return JSON.parse((await promisify(execFile)(process.execPath, args)).stdout) as Found;
  };

  it('is captured in a heap of 64 MB, by little work, as 10,000 values and 10,000 errors', async () => {
    const found = await child(64, 10_000);
    expect(found).toMatchObject({ captured: 20_000, bad: [] });
    // Some 50 ms; a busy machine takes its share.
    expect(found.slowest.ms).toBeLessThan(150);
  }, 400_000);

  it('is captured where it is heavy by itself', async () => {
    const found = await child(160, 0);
    expect(found).toMatchObject({ captured: 2 * (errors.length + values.length), bad: [] });
  }, 300_000);
});

describe('by PostgreSQL', () => {
  let db: TestDatabase;
  let jobs = 0;
  beforeAll(async () => {
    db = await freshDatabase();
  });
  afterAll(async () => db.drop());

  const run = async (work: () => Promise<unknown>) =>
    coordinate(
      deliveryFor(defineJob({ name: `hostile-${++jobs}`, work }), '2026-11-29T12:00:00Z'),
      60_000,
      coordinatorOn(db.url),
    );

  it('is taken as jsonb', async () => {
    const random = randomFrom(21);
    const all = Array.from({ length: 300 }, () => [
      captureValue(hostileFrom(random)),
      captureError(hostileFrom(random)),
    ]);
    for (const kept of all) await db.query('SELECT $1::jsonb', [JSON.stringify(kept)]);
    expect(all).toHaveLength(300);
  });

  it.each(errors)('a run that throws it has failed, and says so: %s', async (_what, make) => {
    // eslint-disable-next-line @typescript-eslint/prefer-promise-reject-errors -- jobs can throw anything
    const failed = await run(async () => Promise.reject(make()));
    expect(failed).toMatchObject({ status: 'failed', output: null });
    expect(failed.error?.message).not.toBe('the outcome could not be stored as it was');
    expect(failed.error?.name).not.toBe('NonError');
  });

  it.each(values)('a run that returns it has succeeded: %s', async (what, make) => {
    // `await` itself asks for `then`; where that throws, the work has.
    const asks = /then throws|every trap|that is revoked/.test(what);
    const ended = await run(async () => make());
    expect(ended.status).toBe(asks ? 'failed' : 'succeeded');
  });
});
