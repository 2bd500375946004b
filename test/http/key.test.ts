/** G5: an Idempotency-Key stands for one run, from the moment on that it is first used. */
import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { coordinate } from '../../src/coordinate.ts';
import type { HttpOptions } from '../../src/http/app.ts';
import { deliveryOf, type RunRequest } from '../../src/path/trigger.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { client, expectProblem, openAt, type Answered, type App } from '../support/http.ts';
import { coordinatorFor, hold, jobs } from '../support/runs.ts';

let db: TestDatabase;
let http: ReturnType<typeof client>;
beforeAll(async () => {
  db = await freshDatabase();
  http = client(db.url);
});
afterAll(() => db.drop());
afterEach(() => {
  http.started.length = 0;
});

const keyed = (key: string, app: App = http.appWith()) => ({ app, headers: { 'idempotency-key': key } });
const start = async (key: string, body?: unknown, app?: App, job = 'tidy') =>
  http.post(`/jobs/${job}/runs`, body, keyed(key, app));
const newKey = () => `"${randomUUID()}"`;

/** As its function runs it. */
const run = async (request: RunRequest | undefined) =>
  coordinate(
    deliveryOf(JSON.parse(JSON.stringify(request)), {
      registry: jobs,
      ownJob: 'tidy',
      deliveryId: randomUUID(),
      now: new Date(),
    }),
    60_000,
    coordinatorFor(db.url),
  );
const runsOf = async (slot: string) =>
  db.query('SELECT id, status FROM cronce.run WHERE slot = $1 ORDER BY id', [slot]);

describe('how a key is written', () => {
  test.each([
    ['"K1"', 'K1', 'manual:K1'],
    ['"a \\"b\\" \\\\ c"', 'a "b" \\ c', 'manual:a "b" \\ c'],
    [' "K2" ', 'K2', 'manual:K2'],
    [
      '"8e03978e-40d5-43dd-bc93-6894a57f9324"',
      '8e03978e-40d5-43dd-bc93-6894a57f9324',
      'manual:8e03978e-40d5-43dd-bc93-6894a57f9324',
    ],
  ])('%s and %s are one', async (quoted, bare, slot) => {
    for (const key of [quoted, bare, quoted]) {
      const answer = await start(key);
      expect([answer.status, answer.json['slot']]).toEqual([202, slot]);
    }
    expect(http.started.map(({ cronce }) => cronce.slot)).toEqual([slot]);
  });

  test.each([
    '""',
    '"',
    '"a',
    '"a"b',
    '"a","b"',
    '"a";x=1',
    '"\\a"',
    '"a\\',
    '"ü"',
    'ü',
    'a\tb',
    '"a\tb"',
    ' ',
    `"${'k'.repeat(201)}"`,
  ])('none is: %s', async (key) => {
    expectProblem(await start(key), 400, 'bad_key', { header: 'idempotency-key' });
    expect(http.started).toEqual([]);
  });

  test('200 characters are one, however many of them are escaped', async () => {
    const answer = await start(`"${'\\"'.repeat(200)}"`);
    expect([answer.status, answer.json['slot']]).toEqual([202, `manual:${'"'.repeat(200)}`]);
  });
});

describe('the same key again', () => {
  test('is answered by the first run: 202 until it is over, and 200 then', async () => {
    const key = newKey();
    const body = { params: { end: 'return' } };
    const first = await start(key, body);
    const slot = first.json['slot'] as string;
    const before = await start(key, body); // nothing is on record of it yet
    expect([first.status, before.status, before.json]).toEqual([202, 202, first.json]);
    expect(before.headers.get('location')).toBe(first.headers.get('location'));
    const done = await run(http.started[0]);
    expect(done.status).toBe('succeeded');
    for (let n = 0; n < 2; n++) {
      const after = await start(key, body);
      expect([after.status, after.json['id'], after.json['status']]).toEqual([200, done.id, 'succeeded']);
      expect(after.headers.get('content-location')).toBe(`/runs/${done.id}`);
    }
    expect(http.started).toHaveLength(1);
    expect(await runsOf(slot)).toHaveLength(1);
  });

  test('is 202 while the first is at work, and makes no record beside it', async () => {
    const key = newKey();
    const slot = `manual:${key.slice(1, -1)}`;
    await start(key, { params: { end: 'hold' } });
    const holder = await hold(db.url, { slot, trigger: 'manual', byHand: true });
    onTestFinished(() => void holder.release());
    const again = await start(key, { params: { end: 'hold' } });
    expect([again.status, again.json['slot']]).toEqual([202, slot]);
    expect(await runsOf(slot)).toMatchObject([{ status: 'running' }]);
    await holder.release();
    expect((await start(key, { params: { end: 'hold' } })).status).toBe(200);
  });

  test('is answered by a failure too, and by the retry that mended it', async () => {
    const key = newKey();
    const body = { params: { end: 'throw' } };
    await start(key, body);
    const [request] = http.started;
    const failed = await run(request);
    expect(failed.status).toBe('failed');
    const answered = await start(key, body);
    expect([answered.status, answered.json['id'], answered.json['status']]).toEqual([
      200,
      failed.id,
      'failed',
    ]);
    await db.query(`UPDATE cronce.run SET status = 'succeeded', id = gen_random_uuid() WHERE id = $1`, [
      failed.id,
    ]);
    await run(request); // a duplicate, so a skip
    expect((await start(key, body)).json).toMatchObject({ status: 'succeeded' });
  });

  test('waits for the outcome of the first, where it is asked to', async () => {
    const key = newKey();
    const body = { params: { end: 'return' } };
    await start(key, body);
    const running = run(http.started[0]);
    const answer = await http.post('/jobs/tidy/runs', body, {
      headers: { 'idempotency-key': key, prefer: 'wait=20' },
    });
    expect([answer.status, answer.json['id']]).toEqual([200, (await running).id]);
  });

  test.each<[string, unknown, unknown, string?]>([
    ['other params', { params: { a: 1 } }, { params: { a: 2 } }],
    ['params of another kind', { params: { a: 1 } }, { params: { a: '1' } }],
    ['no params', { params: { a: 1 } }, {}],
    ['another time', { scheduledFor: '2026-11-28T03:00:00Z' }, { scheduledFor: '2026-11-28T04:00:00Z' }],
    ['no time', { scheduledFor: '2026-11-28T03:00:00Z' }, {}],
    ['another reason', { reason: 'a' }, { reason: 'b' }],
    ['another job', {}, {}, 'report'],
  ])('with %s is 422, before there is a run and after', async (_, first, second, job = 'tidy') => {
    const key = newKey();
    expect((await start(key, first)).status).toBe(202);
    expectProblem(await start(key, second, undefined, job), 422, 'key_reused', { header: 'idempotency-key' });
    await run({ cronce: { ...(http.started[0] as RunRequest).cronce, params: { end: 'return' } } });
    expectProblem(await start(key, second, undefined, job), 422, 'key_reused');
    expect(http.started).toHaveLength(1);
    expect((await start(key, first)).status).toBe(200);
  });

  test.each<[unknown, unknown]>([
    ['{"params":{"a":1,"b":[{"x":1,"y":2}]}}', '{ "params": {"b":[{"y":2.0,"x":1e0}],"a":1} }'],
    ['{"params":null}', '{}'],
    ['{"params":-0}', '{"params":0}'],
    ['{"scheduledFor":"2026-11-28T03:00:00Z"}', '{"scheduledFor":"2026-11-28T04:00:00.000+01:00"}'],
    [undefined, '{}'],
  ])('however the same is written: %s, %s', async (first, second) => {
    const key = newKey();
    expect([(await start(key, first)).status, (await start(key, second)).status]).toEqual([202, 202]);
    expect(http.started).toHaveLength(1);
  });
});

describe('while the first is being started', () => {
  test('20 at once start one run; the others are told so, or to come again', async () => {
    const key = newKey();
    let release = () => {};
    const gate = new Promise<void>((resolve) => (release = resolve));
    const startRun: HttpOptions['startRun'] = async (request) => {
      http.started.push(request);
      await gate;
    };
    const app = http.appWith({ startRun });
    const answers: Answered[] = [];
    const all = Array.from({ length: 20 }, async () => answers.push(await start(key, {}, app)));
    await expect.poll(() => answers.length, { timeout: 20_000 }).toBe(19);
    for (const answer of answers) {
      expectProblem(answer, 409, 'key_in_use');
      expect(answer.headers.get('retry-after')).toBe('1');
    }
    expectProblem(await start(key, { params: 1 }, app), 422, 'key_reused');
    release();
    await Promise.all(all);
    expect(answers.at(-1)?.status).toBe(202);
    expect((await start(key, {}, app)).status).toBe(202);
    expect(http.started).toHaveLength(1);
  });

  test('the key is free again where the function could not be invoked, for the same run', async () => {
    const key = newKey();
    const refusing = http.appWith({ startRun: async () => Promise.reject(new Error('AccessDenied')) });
    expectProblem(await start(key, {}, refusing), 502, 'not_started');
    expectProblem(await start(key, {}, refusing), 502, 'not_started');
    const later = http.appWith({ now: () => new Date('2026-11-30T14:00:00Z') });
    expect((await start(key, {}, later)).status).toBe(202);
    // As it was first asked for: that event may have come through after all.
    expect(http.started.map(({ cronce }) => cronce.scheduledFor)).toEqual(['2026-11-29T14:00:00.000Z']);
  });

  test('or answered by the run that came of it all the same', async () => {
    const key = newKey();
    const body = { params: { end: 'return' } };
    const app = http.appWith({
      startRun: async (request) => {
        http.started.push(request);
        return Promise.reject(new Error('timed out'));
      },
    });
    expectProblem(await start(key, body, app), 502, 'not_started');
    const done = await run(http.started[0]);
    const again = await start(key, body);
    expect([again.status, again.json['id'], http.started.length]).toEqual([200, done.id, 1]);
  });

  test('a process that ended in between holds its key for some seconds only', async () => {
    const key = newKey();
    const slot = key.slice(1, -1);
    await start(key);
    await db.query('UPDATE cronce.idempotency_key SET handed_at = NULL WHERE key = $1', [slot]);
    expectProblem(await start(key), 409, 'key_in_use');
    await db.query(`UPDATE cronce.idempotency_key SET taken_at = taken_at - interval '11 s' WHERE key = $1`, [
      slot,
    ]);
    expect((await start(key)).status).toBe(202);
    expect(http.started).toHaveLength(2);
  });

  test('an event of which nothing came in seven hours is lost, and handed over again', async () => {
    const key = newKey();
    await start(key);
    for (const [hours, handed] of [
      [6, 1],
      [8, 2],
    ] as const) {
      await db.query(
        `UPDATE cronce.idempotency_key SET taken_at = now() - make_interval(hours => $2), handed_at = now() - make_interval(hours => $2)
         WHERE key = $1`,
        [key.slice(1, -1), hours],
      );
      expect((await start(key)).status).toBe(202);
      expect(http.started).toHaveLength(handed);
    }
  });

  test('nothing is started while the key can’t be written down', async () => {
    const app = http.appWith({ openSession: openAt('postgres://me@127.0.0.1:1/x') });
    expectProblem(await start(newKey(), {}, app), 503, 'database_unavailable');
    expect(http.started).toEqual([]);
  });
});

describe('what is on record without a key', () => {
  test('a run of that slot that was sent directly is the key’s, if it is about the same', async () => {
    const slot = `manual:${randomUUID()}`;
    const done = await run({ cronce: { job: 'tidy', trigger: 'manual', slot, params: { end: 'return' } } });
    expectProblem(await start(slot.slice(7), { params: { end: 'other' } }), 422, 'key_reused');
    const answer = await start(slot.slice(7), { params: { end: 'return' } });
    expect([answer.status, answer.json['id']]).toEqual([200, done.id]);
    expect(http.started).toEqual([]);
  });

  test('keys are forgotten with the history, and each deployment has its own', async () => {
    const key = newKey();
    const count = async () =>
      (await db.query('SELECT FROM cronce.idempotency_key WHERE key = $1', [key.slice(1, -1)])).length;
    await start(key);
    await start(key, {}, http.appWith({ deployment: 'shop-prod' }));
    expect([await count(), http.started.length]).toEqual([2, 2]);
    await db.query(
      `UPDATE cronce.idempotency_key SET first_used_at = now() - interval '31 days' WHERE key = $1`,
      [key.slice(1, -1)],
    );
    await start(newKey());
    expect(await count()).toBe(1);
  });
});
