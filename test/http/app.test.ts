/** The HTTP app, asked as a client would ask it, on a real database. */
import { createHash, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer as createHttpServer, type IncomingMessage } from 'node:http';
import { createServer, type AddressInfo } from 'node:net';
import { inspect } from 'node:util';
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import { handler } from '../../functions/http.ts';
import { coordinate } from '../../src/coordinate.ts';
import type { HttpOptions } from '../../src/http/app.ts';
import { invoker } from '../../src/operate/invoke.ts';
import { Session } from '../../src/postgres/session.ts';
import { outcomes, skipReasons, type RunRecord } from '../../src/run.ts';
import { deliveryOf } from '../../src/path/trigger.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { client, expectProblem, openAt, tokens } from '../support/http.ts';
import { coordinatorFor, deliver, jobs, makeEveryOutcome, report } from '../support/runs.ts';

const { read: readToken, run: runToken, wrong: wrongToken } = tokens;
const now = new Date('2026-11-29T14:00:00Z');

let db: TestDatabase;
let runCount: number;
beforeAll(async () => {
  db = await freshDatabase();
  const changes = { runTokens: ['another-run-token-01234', runToken] };
  ({ started, logged, appWith, ask, post } = client(db.url, {
    now,
    changes,
    tell: (text) => void told.push(text),
  }));
  runCount = await makeEveryOutcome(db);
  await db.query(`UPDATE cronce.job SET first_seen_at = '2026-10-15' WHERE name = 'report'`);
});
afterAll(() => db.drop());

// Whatever is answered or logged anywhere below: no token and no password is in it.
const told: string[] = [];
afterAll(() => {
  const secrets = [readToken, runToken, wrongToken, new URL(db.url).password];
  const forms = secrets.flatMap((one) => [
    one,
    encodeURIComponent(one),
    Buffer.from(`me:${one}`).toString('base64'),
  ]);
  expect(told.length).toBeGreaterThan(100);
  expect(forms.filter((form) => told.some((text) => text.includes(form)))).toEqual([]);
});

type Client = ReturnType<typeof client>;
let started: Client['started'];
let logged: Client['logged'];
let appWith: Client['appWith'];
let ask: Client['ask'];
let post: Client['post'];
afterEach(() => {
  started.length = 0;
  logged.length = 0;
});

const basic = (password: string) => `Basic ${Buffer.from(`me:${password}`).toString('base64')}`;

describe('who may come in', () => {
  test.each([
    ['nothing', undefined, 401, 401],
    ['a scheme alone', 'Bearer', 401, 401],
    ['an unknown token', `Bearer ${wrongToken}`, 401, 401],
    ['a token with something behind it', `Bearer ${readToken}x`, 401, 401],
    ['the beginning of a token', `Bearer ${readToken.slice(0, -1)}`, 401, 401],
    ['a bare token', readToken, 401, 401],
    ['another scheme', `Token ${readToken}`, 401, 401],
    ['Basic that is no base64', 'Basic !!!', 401, 401],
    ['Basic without a password', `Basic ${Buffer.from(runToken).toString('base64')}`, 401, 401],
    ['Basic with a wrong password', basic(wrongToken), 401, 401],
    ['Basic with a read token', basic(readToken), 200, 401],
    ['Basic with a run token', basic(runToken), 200, 401],
    ['a read token', `Bearer ${readToken}`, 200, 403],
    ['a run token', `Bearer ${runToken}`, 200, 202],
    ['a run token, in lower case', `bearer ${runToken}`, 200, 202],
  ])('%s', async (_, authorization, onGet, onPost) => {
    const headers: Record<string, string> = authorization === undefined ? {} : { authorization };
    const reading = await ask('/jobs', { token: null, headers });
    const starting = await post('/jobs/tidy/runs', undefined, { token: null, headers });
    expect([reading.status, starting.status]).toEqual([onGet, onPost]);
    expect(started).toHaveLength(onPost === 202 ? 1 : 0);
    for (const answer of [reading, starting].filter(({ status }) => status === 401)) {
      expectProblem(answer, 401, 'unauthorized');
      const detail = 'Send a token that is known here, as Authorization: Bearer <token>.';
      expect(answer.json).toEqual({
        type: 'about:blank',
        title: 'Unauthorized',
        status: 401,
        code: 'unauthorized',
        detail,
      });
      const error = authorization === undefined ? '' : ', error="invalid_token"';
      expect(answer.headers.get('www-authenticate')).toBe(`Bearer realm="cronce"${error}`);
    }
  });

  test('a read token on POST is told which scope it lacks', async () => {
    const answer = await post('/jobs/tidy/runs', undefined, { token: readToken });
    expectProblem(answer, 403, 'scope');
    expect(answer.headers.get('www-authenticate')).toContain('error="insufficient_scope", scope="run"');
  });

  test('a browser is asked for a password at the page, and nobody elsewhere', async () => {
    const html = { headers: { accept: 'text/html,*/*' }, token: null };
    expect((await ask('/', html)).headers.get('www-authenticate')).toBe(
      'Basic realm="cronce", charset="UTF-8"',
    );
    expect((await ask('/', { token: null })).headers.get('www-authenticate')).toMatch(/^Bearer/);
    expect((await ask('/runs', html)).headers.get('www-authenticate')).toMatch(/^Bearer/);
    expect((await post('/', undefined, html)).headers.get('www-authenticate')).toMatch(/^Bearer/);
  });

  test.each([
    ['none', { readTokens: [], runTokens: [] }, 'no_token_configured'],
    ['only an empty one', { readTokens: [''], runTokens: [''] }, 'no_token_configured'],
  ])('with %s configured every route but /healthz refuses', async (_, tokens, code) => {
    const app = appWith(tokens);
    const authorizations = [undefined, 'Bearer ', 'Bearer x', basic(''), `Bearer ${runToken}`];
    for (const authorization of authorizations)
      for (const path of ['/', '/jobs', '/jobs/tidy', '/runs', `/runs/${randomUUID()}`, '/nothing']) {
        const headers: Record<string, string> = authorization === undefined ? {} : { authorization };
        const answer = await ask(path, { app, token: null, headers });
        expectProblem(answer, 401, code);
        expect(answer.json['detail']).toContain('No token is configured');
      }
    expectProblem(await post('/jobs/tidy/runs', undefined, { app }), 401, code);
    expect((await ask('/healthz', { app, token: null })).status).toBe(200);
    expect(started).toEqual([]);
  });

  test('a token in the wrong place is not repeated', async () => {
    const paths = [
      `/runs/${runToken}`,
      `/jobs/${encodeURIComponent(runToken)}`,
      `/${wrongToken}`,
      `/runs?token=${wrongToken}`,
    ];
    for (const path of [
      ...paths,
      `/runs?${wrongToken}=1`,
      `/runs?status=${wrongToken}`,
      `/runs?before=${wrongToken}`,
    ])
      expect((await ask(path)).status).toBeGreaterThanOrEqual(400);
    const bodies = [{ [wrongToken]: 1 }, { slot: wrongToken }, `{"params": ${wrongToken}`];
    for (const body of bodies)
      expect((await post('/jobs/tidy/runs', body)).status).toBeGreaterThanOrEqual(400);
  });
});

describe('/healthz', () => {
  const ill = async (openSession: HttpOptions['openSession']) =>
    ask('/healthz', { app: appWith({ openSession }), token: null });

  test('is well when the database answers and the schema fits', async () => {
    const answer = await ask('/healthz', { token: null });
    expect([answer.status, answer.json]).toEqual([200, { status: 'ok' }]);
  });

  test.each([
    ['nobody listens', (url: URL) => (url.port = '1')],
    ['the password is wrong', (url: URL) => (url.password = wrongToken)],
    ['there is no such database', (url: URL) => (url.pathname = '/nowhere')],
  ])('is ill where %s', async (_, change) => {
    const url = new URL(db.url);
    change(url);
    expectProblem(await ill(openAt(url.href)), 503, 'database_unavailable');
    expect(logged.map(({ level }) => level)).toEqual(['error']);
  });

  test('is ill within two seconds where the server says nothing, and leaves no connection behind', async () => {
    const mute = createServer((socket) => socket.on('error', () => undefined).resume()).listen(
      0,
      '127.0.0.1',
    );
    await once(mute, 'listening');
    onTestFinished(() => void mute.close());
    const url = `postgres://me:${wrongToken}@127.0.0.1:${(mute.address() as AddressInfo).port}/x`;
    const openSession = async () => Session.open({ url, driver: 'pg', connectTimeoutMs: 2_400 });
    const since = performance.now();
    expectProblem(await ill(openSession), 503, 'database_unavailable');
    expect(performance.now() - since).toBeLessThan(2_300);
    await vi.waitFor(async () => {
      const open = await new Promise((resolve) => mute.getConnections((_, count) => resolve(count)));
      expect(open).toBe(0);
    });
  });

  test('is ill where the schema is missing, and where it is newer than this code', async () => {
    const empty = await freshDatabase({ migrated: false });
    const newer = await freshDatabase();
    await newer.query("INSERT INTO cronce.migration (version, name) VALUES (999, 'from the future')");
    expectProblem(await ill(openAt(empty.url)), 503, 'schema_mismatch');
    expectProblem(await ill(openAt(newer.url)), 503, 'schema_mismatch');
    await empty.drop();
    await newer.drop();
  });
});

describe('jobs', () => {
  test('are listed with what their code says and what the database knows', async () => {
    const { status, json } = await ask('/jobs', { token: readToken });
    const [first, second, third] = json['jobs'] as Record<string, unknown>[];
    expect(status).toBe(200);
    expect(first).toMatchObject({
      name: 'tidy',
      schedules: [
        {
          expression: 'rate(5 minutes)',
          inWords: 'Every 5 minutes',
          nextAt: '2026-11-29T14:05:00.000Z',
          via: 'rule',
        },
      ],
      nextAt: null, // it is paused
      paused: { at: '2026-11-29T09:00:00.000Z', by: 'ops', reason: 'moving house' },
      latestRun: { status: 'skipped', skipReason: 'paused' },
    });
    expect(second).toMatchObject({
      name: 'report',
      paused: null,
      nextAt: '2026-11-30T06:15:00.000Z',
      latestRun: { status: 'failed' },
    });
    expect(third).toMatchObject({ name: 'by-hand', schedules: [], nextAt: null });
  });

  test('one of them comes with its options and latest runs', async () => {
    const { status, json } = await ask('/jobs/report');
    expect(status).toBe(200);
    expect(json).toMatchObject({
      name: 'report',
      options: { lock: 'report', lockDelayMs: null, retries: 0, overlap: 'skip', timeoutMs: 300_000 },
    });
    expect(json['runs']).toMatchObject([{ job: 'report', status: 'failed' }]);
  });

  test('an unknown one is a problem that names those there are', async () => {
    for (const path of ['/jobs/nobody', '/jobs/__proto__', '/jobs/Tidy']) {
      const answer = await ask(path);
      expectProblem(answer, 404, 'no_such_job');
      expect(answer.json['known']).toEqual(['tidy', 'report', 'by-hand']);
    }
    expectProblem(await post('/jobs/nobody/runs', {}), 404, 'no_such_job');
    expect(started).toEqual([]);
  });
});

describe('runs', () => {
  const list = async (query: string) => {
    const { status, json } = await ask(`/runs${query}`, { token: readToken });
    expect(status).toBe(200);
    return json as unknown as { readonly runs: RunRecord[]; readonly next: string | null };
  };

  test('are there in every outcome and with every reason', async () => {
    const { runs, next } = await list('?limit=200');
    expect(runs).toHaveLength(runCount);
    expect(next).toBeNull();
    expect(new Set(runs.map(({ status }) => status))).toEqual(new Set(['running', ...outcomes]));
    expect(new Set(runs.flatMap(({ skipReason }) => skipReason ?? []))).toEqual(new Set(skipReasons));
  });

  test.each(['running', ...outcomes])('can be filtered: status %s', async (status) => {
    const { runs } = await list(`?status=${status}`);
    expect(runs.length).toBeGreaterThan(0);
    expect(runs.every((run) => run.status === status)).toBe(true);
  });

  test('can be filtered: by reason, job, slot, and several at once', async () => {
    for (const reason of skipReasons) {
      const found = (await list(`?reason=${reason}`)).runs.map(({ skipReason }) => skipReason);
      expect(new Set(found)).toEqual(new Set([reason]));
    }
    expect((await list('?job=report')).runs.map(({ job }) => job)).toEqual(['report']);
    const slot = (await list('?slot=2026-11-29T06:00:00Z&job=tidy')).runs;
    expect(slot.map(({ status, skipReason }) => skipReason ?? status)).toEqual(['duplicate', 'succeeded']);
    expect((await list('?slot=manual%3Afirst')).runs.map(({ requestedBy }) => requestedBy)).toEqual([
      'run token 1',
    ]);
    expect(await list('?job=nobody')).toEqual({ runs: [], next: null });
    expect(await list('?job=report&status=succeeded')).toEqual({ runs: [], next: null });
  });

  test.each([1, 7, 200])(
    'in pages of %i no run is lost or comes twice, though others arrive meanwhile',
    async (limit) => {
      const all = (await list('?limit=200')).runs.map(({ id }) => id);
      const walked: string[] = [];
      for (let next: string | null = ''; next !== null;) {
        const page = await list(`?limit=${limit}${next === '' ? '' : `&before=${next}`}`);
        expect(page.runs.length).toBeLessThanOrEqual(limit);
        walked.push(...page.runs.map(({ id }) => id));
        if (next === '')
          await deliver(db.url, { job: report, slot: 'manual:meanwhile', trigger: 'manual' }, 'return');
        next = page.next;
      }
      expect(walked).toEqual(all);
    },
  );

  test('come fifty at a time if nothing is said, and a full last page has no next', async () => {
    const many = Array.from({ length: 60 }, (_, index) => `manual:many-${index}`);
    await db.query(
      `INSERT INTO cronce.run (id, job, slot, scheduled_for, trigger, status, finished_at, lock_name, received_at)
       SELECT ('ffffffff-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid, 'many', s, now(), 'sweep', 'missed', now(), 'many', now()
       FROM unnest($1::text[]) WITH ORDINALITY AS u (s, n)`,
      [many],
    );
    const { runs, next } = await list('?job=many');
    expect(runs).toHaveLength(50);
    expect((await list(`?job=many&before=${String(next)}`)).runs).toHaveLength(10);
    expect((await list('?job=many&limit=60')).next).toBeNull();
    expect((await list('?job=many&limit=59')).next).not.toBeNull();
    await db.query("DELETE FROM cronce.run WHERE job = 'many'");
  });

  test.each([
    'limit=0',
    'limit=201',
    'limit=-1',
    'limit=1e1',
    'limit=',
    'limit=10&limit=20',
    'status=done',
    'reason=why',
    'before=yesterday',
    'jobb=tidy',
    '__proto__=1',
  ])('a filter that is none is refused: %s', async (query) => {
    const answer = await ask(`/runs?${query}`);
    expectProblem(answer, 400, 'bad_query');
    expect(answer.json['known']).toEqual(['job', 'slot', 'status', 'reason', 'before', 'limit']);
  });

  test('one of them comes whole, and in a list without what is large', async () => {
    const output = { text: 'x'.repeat(60_000) };
    const { id } = await deliver(
      db.url,
      { slot: 'manual:large', trigger: 'manual', byHand: true },
      'return',
      output,
    );
    expect((await ask(`/runs/${id}`)).json).toMatchObject({ id, output, params: { output } });
    const [listed] = (await list('?slot=manual%3Alarge')).runs;
    expect(listed?.output).toEqual({
      cut: expect.stringMatching(/^\d+ bytes; the run itself has it whole$/) as unknown,
    });
    const [failed] = (await list('?status=failed&job=report')).runs;
    expect(failed?.error).toEqual({ name: 'Error', message: expect.stringContaining('hung up') as unknown });
    const whole = (await ask(`/runs/${failed?.id ?? ''}`)).json;
    expect(whole['error']).toMatchObject({ stack: expect.stringContaining('work') as unknown });
  });

  test.each([randomUUID(), 'x', "1' OR '1'='1", '00000000-0000-0000-0000-00000000000g'])(
    'no run: %s',
    async (id) => {
      expectProblem(await ask(`/runs/${encodeURIComponent(id)}`), 404, 'no_such_run');
    },
  );
});

describe('a run by hand', () => {
  const asked = (slot: unknown, params?: unknown) => ({
    cronce: {
      job: 'tidy',
      trigger: 'manual',
      slot,
      // An occurrence has its own time.
      scheduledFor: String(slot).startsWith('manual:') ? now.toISOString() : slot,
      requestedBy: 'run token 2',
      ...(params === undefined ? {} : { params }),
    },
  });

  test('gets a slot of its own, and says where its outcome will be', async () => {
    const { status, json, headers } = await post('/jobs/tidy/runs');
    const slot = json['slot'] as string;
    expect(status).toBe(202);
    expect(slot).toMatch(/^manual:[0-9a-f]{8}-[0-9a-f]{4}-7/);
    expect(json).toEqual({ job: 'tidy', slot, runs: headers.get('location') });
    expect(headers.get('location')).toBe(`/runs?job=tidy&slot=${encodeURIComponent(slot)}`);
    expect(headers.get('retry-after')).toBe('1');
    expect(started).toEqual([asked(slot)]);
    expect(logged).toHaveLength(1);
    expect((await post('/jobs/tidy/runs')).json['slot']).not.toBe(slot);
  });

  test.each([
    [{}, undefined],
    [{ params: null }, null],
    [{ params: 0 }, 0],
    [{ params: '' }, ''],
    [{ params: [] }, []],
    [{ params: { deep: [{ er: 'ünïcode 👍' }] } }, { deep: [{ er: 'ünïcode 👍' }] }],
  ])('hands its params over as they are: %j', async (body, params) => {
    const { status, json } = await post('/jobs/tidy/runs', body);
    expect(status).toBe(202);
    expect(started).toEqual([asked(json['slot'], params)]);
  });

  test.each(['1', 'order 4711: again, & "soon"', '~'.repeat(200)])('is named by its key: %s', async (key) => {
    const { status, json, headers } = await post('/jobs/tidy/runs', undefined, {
      headers: { 'idempotency-key': key },
    });
    expect(status).toBe(202);
    expect(started).toEqual([asked(`manual:${key}`)]);
    const location = new URL(headers.get('location') ?? '', 'http://here');
    expect([location.searchParams.get('slot'), json['slot']]).toEqual([`manual:${key}`, `manual:${key}`]);
  });

  test('may repeat a slot of the schedule', async () => {
    const slots = [
      '2026-11-29T12:00:00Z',
      '2026-11-29T13:00:00+01:00',
      '2026-11-29T12:00Z',
      '2026-11-29T12:00:00.250Z',
    ];
    for (const slot of slots) expect((await post('/jobs/tidy/runs', { slot })).status).toBe(202);
    expect(started).toEqual(slots.map(() => asked('2026-11-29T12:00:00Z')));
    expect((await post('/jobs/report/runs', { slot: '2026-11-27T07:15:00+01:00' })).json['slot']).toBe(
      '2026-11-27T06:15:00Z',
    );
  });

  test('may repeat a slot that only the history knows, as the schedule was another then', async () => {
    expectProblem(await post('/jobs/report/runs', { slot: '2026-11-29T05:00:00Z' }), 422, 'bad_slot');
    expect((await post('/jobs/report/runs', { slot: '2026-11-29T06:00:00Z' })).status).toBe(202);
  });

  test('a slot that was never due is refused, with the last ones that were', async () => {
    const answer = await post('/jobs/report/runs', { slot: '2026-11-29T07:15:00Z' });
    expectProblem(answer, 422, 'bad_slot');
    expect(answer.json['nearest']).toEqual(['2026-11-01T12:00:00Z', '2026-11-27T06:15:00Z']);
    expectProblem(await post('/jobs/by-hand/runs', { slot: '2026-11-29T12:00:00Z' }), 422, 'bad_slot');
  });

  const large = (bytes: number) => ({ params: 'x'.repeat(bytes - 2) });
  const deep = JSON.parse(`${'['.repeat(14)}${']'.repeat(14)}`) as unknown;
  test.each<[string, number, string, unknown, Record<string, string>?]>([
    ['no JSON', 400, 'not_json', '{"params": '],
    ['no JSON, but nearly', 400, 'not_json', "{'params': 1}"],
    ['a list', 400, 'bad_body', []],
    ['a text', 400, 'bad_body', '"params"'],
    ['null', 400, 'bad_body', 'null'],
    ['an unknown member', 400, 'bad_body', { params: 1, force: true }],
    ['a slip', 400, 'bad_body', { parms: 1 }],
    ['a slot that is no text', 400, 'bad_body', { slot: 5 }],
    ['a slot that is no time', 422, 'bad_slot', { slot: 'yesterday' }],
    ['a slot by its key', 422, 'bad_slot', { slot: 'manual:1' }],
    ['a date without a time', 422, 'bad_slot', { slot: '2026-11-29' }],
    ['a time without a zone', 422, 'bad_slot', { slot: '2026-11-29T12:00:00' }],
    ['a day that does not exist', 422, 'bad_slot', { slot: '2026-02-30T12:00:00Z' }],
    ['an hour that does not exist', 422, 'bad_slot', { slot: '2026-11-29T25:00:00Z' }],
    ['a slot to come', 422, 'bad_slot', { slot: '2026-11-29T14:05:00Z' }],
    ['a key and a slot', 400, 'key_and_slot', { slot: '2026-11-29T12:00:00Z' }, { 'idempotency-key': 'k' }],
    ['an empty key', 400, 'bad_key', {}, { 'idempotency-key': '' }],
    ['a long key', 400, 'bad_key', {}, { 'idempotency-key': 'k'.repeat(201) }],
    ['a key that is not printable', 400, 'bad_key', {}, { 'idempotency-key': 'a\tb' }],
    ['a key beyond ASCII', 400, 'bad_key', {}, { 'idempotency-key': 'schlüssel' }],
    ['a form', 415, 'media_type', 'params=1', { 'content-type': 'application/x-www-form-urlencoded' }],
    ['plain text', 415, 'media_type', '{}', { 'content-type': 'text/plain' }],
    ['something like JSON', 415, 'media_type', '{}', { 'content-type': 'application/jsonp' }],
    ['params of 64 KB and a byte', 413, 'params_too_large', large(64 * 1024 + 1)],
    ['params of many bytes and fewer letters', 413, 'params_too_large', { params: 'ü'.repeat(40_000) }],
    ['a huge body', 413, 'params_too_large', `{}${' '.repeat(1_000_000)}`],
    ['params with NUL', 400, 'bad_text', '{"params": "a\\u0000b"}'],
    ['params with half a letter', 400, 'bad_text', '{"params": {"\\ud800": 1}}'],
    [
      'params with too many entries',
      422,
      'params_not_storable',
      { params: Array.from({ length: 1_001 }, () => 0) },
    ],
    ['params that are too deep', 400, 'too_deep', { params: deep }],
  ])('is refused, and nothing is started: %s', async (_, status, code, body, headers = {}) => {
    expectProblem(await post('/jobs/tidy/runs', body, { headers }), status, code);
    expect(started).toEqual([]);
    expect(logged).toEqual([]);
  });

  test('params of 64 KB exactly, and JSON with a charset, are taken', async () => {
    const headers = { 'content-type': 'Application/JSON; charset=utf-8' };
    expect((await post('/jobs/tidy/runs', large(64 * 1024), { headers })).status).toBe(202);
  });

  test('a function that can’t be invoked is a problem, logged and without what the request held', async () => {
    const startRun = async () => Promise.reject(new Error('AccessDeniedException: not authorized'));
    const answer = await post(
      '/jobs/tidy/runs',
      { params: { secret: 'in params' } },
      { app: appWith({ startRun }) },
    );
    expectProblem(answer, 502, 'not_started');
    expect(answer.json['detail']).toContain('The job’s function could not be invoked');
    expect(answer.json['runs']).toBe(
      `/runs?job=tidy&slot=${encodeURIComponent(answer.json['slot'] as string)}`,
    );
    expect(logged.map(({ level }) => level)).toEqual(['error']);
    expect(logged[0]?.text).toContain('AccessDeniedException');
    expect(answer.text + (logged[0]?.text ?? '')).not.toMatch(/in params/);
    expect(answer.text).not.toContain('AccessDenied');
  });

  describe('waited for', () => {
    /** Runs it at once, in this process, as its function would. */
    const startRun: HttpOptions['startRun'] = async (request) => {
      started.push(request);
      const delivery = deliveryOf(request, { registry: jobs, ownJob: null, deliveryId: randomUUID(), now });
      running.push(coordinate(delivery, 60_000, coordinatorFor(db.url)));
    };
    const running: Promise<unknown>[] = [];
    afterEach(async () => {
      await Promise.all(running);
    });
    const waiting = (prefer: string, key: string = randomUUID()) => ({
      app: appWith({ startRun }),
      headers: { prefer, 'idempotency-key': key },
    });

    test.each([
      ['return', 'succeeded'],
      ['throw', 'failed'],
      ['wait', 'timed_out'],
    ])('answers the run that it came to: %s', async (end, status) => {
      const answer = await post('/jobs/tidy/runs', { params: { end } }, waiting('respond-async, wait=10'));
      expect(answer.status).toBe(200);
      expect(answer.json).toMatchObject({
        job: 'tidy',
        status,
        trigger: 'manual',
        requestedBy: 'run token 2',
        params: { end },
      });
      expect(answer.headers.get('preference-applied')).toBe('wait=10');
      expect(answer.headers.get('content-location')).toBe(`/runs/${answer.json['id'] as string}`);
    });

    test('a key that has had its success is answered by that, and starts nothing', async () => {
      const first = await post('/jobs/tidy/runs', { params: { end: 'return' } }, waiting('wait=10', 'twice'));
      const second = await post(
        '/jobs/tidy/runs',
        { params: { end: 'return' } },
        waiting('wait=10', 'twice'),
      );
      expect([second.status, second.json['id']]).toEqual([200, first.json['id']]);
      expect(started).toHaveLength(1);
    });

    test('what takes longer than was preferred is accepted', async () => {
      const since = performance.now();
      const answer = await post('/jobs/tidy/runs', undefined, { headers: { prefer: 'wait=1' } });
      expect(answer.status).toBe(202);
      expect(answer.headers.get('preference-applied')).toBe('wait=1');
      expect(performance.now() - since).toBeGreaterThan(990);
    });

    test.each(['wait=0', 'wait=soon', 'handling=strict', 'nowait=5', ''])(
      'there is no waiting by: %s',
      async (prefer) => {
        const answer = await post('/jobs/tidy/runs', undefined, { headers: { prefer } });
        expect([answer.status, answer.headers.get('preference-applied')]).toEqual([202, null]);
      },
    );

    test('the run starts though the database can’t be looked into', async () => {
      const app = appWith({ openSession: openAt('postgres://me@127.0.0.1:1/x') });
      const answer = await post('/jobs/tidy/runs', undefined, { app, headers: { prefer: 'wait=9' } });
      expect([answer.status, started.length]).toEqual([202, 1]);
    });
  });
});

describe('pause and resume', () => {
  test('say who and why, once, and show in what is deployed', async () => {
    const first = await post('/jobs/by-hand/pause', { reason: 'a look' });
    expect(first.status).toBe(200);
    expect(first.json).toMatchObject({
      job: 'by-hand',
      paused: { by: expect.any(String) as unknown, reason: 'a look' },
    });
    expect((await post('/jobs/by-hand/pause', { reason: 'another' })).json).toEqual(first.json);
    expect(JSON.stringify((await ask('/jobs/by-hand')).json)).toContain('a look');
    for (let n = 0; n < 2; n++)
      expect((await post('/jobs/by-hand/resume')).json).toEqual({ job: 'by-hand', paused: null });
    expect(JSON.stringify((await ask('/jobs/by-hand')).json)).not.toContain('a look');
  });

  test('refuse whom and what they must', async () => {
    expectProblem(await post('/jobs/by-hand/pause', undefined, { token: readToken }), 403, 'scope');
    expectProblem(await post('/jobs/nope/pause'), 404, 'no_such_job');
    expectProblem(await post('/jobs/by-hand/pause', { reason: '' }), 400, 'bad_body');
    expectProblem(await post('/jobs/by-hand/pause', []), 400, 'bad_body');
    expectProblem(
      await post('/jobs/by-hand/pause', '{}', { headers: { 'content-type': 'text/plain' } }),
      415,
      'media_type',
    );
    expectProblem(await post('/jobs/by-hand/pause', '{', {}), 400, 'not_json');
  });
});

describe('every answer', () => {
  test.each([
    ['GET', '/nothing', 404, 'no_such_route', null],
    ['GET', '/jobs/', 404, 'no_such_route', null],
    ['POST', '/jobs/tidy', 405, 'method_not_allowed', 'GET, HEAD'],
    ['DELETE', '/jobs', 405, 'method_not_allowed', 'GET, HEAD'],
    ['PUT', '/runs/1', 405, 'method_not_allowed', 'GET, HEAD'],
    ['GET', '/jobs/tidy/runs', 405, 'method_not_allowed', 'POST'],
    ['HEAD', '/jobs/tidy/runs', 405, '', 'POST'],
    ['OPTIONS', '/', 405, 'method_not_allowed', 'GET, HEAD'],
    ['POST', '/healthz', 405, 'method_not_allowed', 'GET, HEAD'],
  ])('%s %s is %i', async (method, path, status, code, allow) => {
    const answer = await ask(path, { method });
    if (method === 'HEAD') expect([answer.status, answer.text]).toEqual([status, '']);
    else expectProblem(answer, status, code);
    expect(answer.headers.get('allow')).toBe(allow);
  });

  test.each(['/', '/jobs', '/jobs/tidy', '/runs', '/healthz'])(
    'to HEAD %s is that to GET, without its body',
    async (path) => {
      const [head, get] = [await ask(path, { method: 'HEAD' }), await ask(path)];
      expect([head.status, head.text]).toEqual([200, '']);
      expect([...head.headers]).toEqual([...get.headers]);
    },
  );

  test.each(['/', '/jobs', '/healthz', '/nothing', '/jobs/nobody'])(
    'to %s is for its reader alone',
    async (path) => {
      for (const token of [runToken, null]) {
        const { headers } = await ask(path, { token });
        expect(headers.get('cache-control')).toBe('no-store');
        expect(headers.get('x-content-type-options')).toBe('nosniff');
        expect(headers.get('referrer-policy')).toBe('no-referrer');
        expect(headers.get('content-security-policy')).toMatch(
          /^default-src 'none'.*frame-ancestors 'none'$/,
        );
      }
    },
  );

  test('a fault of our own tells the log what it was, and the client that it was one', async () => {
    const openSession = async () =>
      Promise.reject(new TypeError('inner workings', { cause: new Error('deeper still') }));
    const answer = await ask('/jobs', { app: appWith({ openSession }) });
    expectProblem(answer, 500, 'internal');
    expect(answer.text).not.toMatch(/inner|deeper|TypeError/);
    expect(logged[0]?.text).toMatch(/inner workings[^]*deeper still/);
  });

  test('a database that is down is a problem of 503 everywhere', async () => {
    const app = appWith({ openSession: openAt('postgres://me@127.0.0.1:1/x') });
    for (const path of ['/', '/jobs', '/jobs/tidy', '/runs', `/runs/${randomUUID()}`])
      expectProblem(await ask(path, { app }), 503, 'database_unavailable');
  });
});

describe('the page', () => {
  test('shows jobs and runs, and nothing in them is markup', async () => {
    const { status, text, headers } = await ask('/', {
      token: null,
      headers: { authorization: basic(readToken) },
    });
    expect([status, headers.get('content-type')]).toEqual([200, 'text/html; charset=UTF-8']);
    expect(text).toContain('Clears away &lt;b&gt;what is over&lt;/b&gt; &amp; done with.');
    expect(text).toContain('&lt;script&gt;alert(&quot;no&quot;)&lt;/script&gt;');
    expect(text).toContain('Paused since');
    expect(text).toMatch(/began 14\.8 s later, behind <a href="runs\/[0-9a-f-]{36}">this run<\/a>/);
    expect(text).toMatch(/held by a run of shop-prod \(will be tried again\)/);
    expect(text).toMatch(/off schedule/);
    expect(text).not.toMatch(/<script|<form|<img|style="|\son\w+="|\[object|undefined|NaN/);
    expect(text).not.toMatch(/(?:href|src)="(?!runs|data:image)/);
  });

  test('says whose it is, where that is named', async () => {
    const { text } = await ask('/', { app: appWith({ deployment: 'shop-<prod>' }) });
    expect(text).toContain('shop-&lt;prod&gt; · As of');
    expect((await ask('/')).text).not.toMatch(/·\s*As of/);
  });

  test('is allowed its one style sheet', async () => {
    const { text, headers } = await ask('/');
    const [, style = ''] = /<style>([^]*)<\/style>/.exec(text) ?? [];
    const digest = createHash('sha256').update(style).digest('base64');
    expect(headers.get('content-security-policy')).toContain(`style-src 'sha256-${digest}';`);
  });

  test('says what to do where there is nothing to see', async () => {
    const empty = await freshDatabase();
    const openSession = openAt(empty.url);
    const fresh = await ask('http://here.example/', { app: appWith({ openSession }) });
    expect(fresh.text).toContain('http://here.example/jobs/tidy/runs');
    const jobless = await ask('/', { app: appWith({ openSession, registry: new Map() }) });
    expect(jobless.text).toContain('No job is defined');
    await empty.drop();
  });
});

/** Stands in for the Lambda API. */
async function lambdaThat(answers: (attempt: number) => { status: number; body?: unknown } | 'silence') {
  const requests: { readonly head: IncomingMessage; readonly body: string }[] = [];
  const server = createHttpServer((head, response) => {
    const chunks: Buffer[] = [];
    head.on('data', (chunk: Buffer) => chunks.push(chunk));
    head.on('end', () => {
      requests.push({ head, body: Buffer.concat(chunks).toString() });
      const answer = answers(requests.length);
      if (answer === 'silence') return;
      response.writeHead(answer.status, { 'content-type': 'application/json' });
      response.end(answer.body === undefined ? '' : JSON.stringify(answer.body));
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return { requests, endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}

describe('through the Lambda client', () => {
  const denied = {
    status: 403,
    body: { __type: 'AccessDeniedException', Message: 'User is not authorized' },
  };
  const startAt = async (endpoint: string, key: string = randomUUID()) => {
    const startRun = invoker({ functionPrefix: 'shop-prod-', lambdaEndpoint: endpoint });
    return post(
      '/jobs/tidy/runs',
      { params: { a: 1 } },
      { app: appWith({ startRun }), headers: { 'idempotency-key': key } },
    );
  };

  test('a run is an event for its job’s own function', async () => {
    const lambda = await lambdaThat(() => ({ status: 202 }));
    expect((await startAt(lambda.endpoint, 'k')).status).toBe(202);
    expect(lambda.requests).toHaveLength(1);
    const [{ head, body }] = lambda.requests as [(typeof lambda.requests)[number]];
    expect([head.method, head.url]).toEqual(['POST', '/2015-03-31/functions/shop-prod-tidy/invocations']);
    expect(head.headers['x-amz-invocation-type']).toBe('Event');
    expect(JSON.parse(body)).toEqual({
      cronce: {
        job: 'tidy',
        trigger: 'manual',
        slot: 'manual:k',
        scheduledFor: now.toISOString(),
        requestedBy: 'run token 2',
        params: { a: 1 },
      },
    });
    expect(
      deliveryOf(JSON.parse(body), { registry: jobs, ownJob: null, deliveryId: null, now }),
    ).toMatchObject({
      slot: 'manual:k',
      byHand: true,
      params: { a: 1 },
    });
  });

  test.each<[string, Parameters<typeof lambdaThat>[0], number]>([
    ['refuses', () => denied, 1],
    [
      'does not know the function',
      () => ({ status: 404, body: { Type: 'User', Message: 'Function not found' } }),
      1,
    ],
    ['is broken', () => ({ status: 500 }), 2],
    ['answers as if it had waited', () => ({ status: 200, body: {} }), 1],
    ['says nothing', () => 'silence', 1],
  ])('one that %s is 502, in time', async (_, answers, attempts) => {
    const lambda = await lambdaThat(answers);
    const since = performance.now();
    expectProblem(await startAt(lambda.endpoint), 502, 'not_started');
    expect(lambda.requests).toHaveLength(attempts);
    expect(performance.now() - since).toBeLessThan(4_000);
    expect(logged.map(({ level }) => level)).toEqual(['error']);
  });

  test('one that was broken for a moment is asked again', async () => {
    const lambda = await lambdaThat((attempt) => ({ status: attempt === 1 ? 500 : 202 }));
    expect((await startAt(lambda.endpoint)).status).toBe(202);
    expect(lambda.requests.map(({ body }) => body)).toEqual([
      lambda.requests[0]?.body,
      lambda.requests[0]?.body,
    ]);
  });

  test('nobody listening is 502', async () => {
    expectProblem(await startAt('http://127.0.0.1:1'), 502, 'not_started');
  });
});

describe('the Lambda entry', () => {
  const environment = (changes: Record<string, string> = {}) => {
    const all = {
      DATABASE_URL: db.url,
      CRONCE_READ_TOKENS: readToken,
      CRONCE_RUN_TOKENS: runToken,
      ...changes,
    };
    for (const [key, value] of Object.entries(all)) vi.stubEnv(key, value);
    // Powertools writes by a console of its own, straight to the process's streams.
    for (const stream of [process.stdout, process.stderr])
      vi.spyOn(stream, 'write').mockImplementation((text) => {
        told.push(String(text));
        return true;
      });
    onTestFinished(() => {
      vi.unstubAllEnvs();
      vi.restoreAllMocks();
    });
  };

  /** As an HTTP API sends it: header names in lower case, the body as text. */
  const call = async (
    method: string,
    path: string,
    { headers = {}, body }: { headers?: Record<string, string>; body?: string } = {},
  ) => {
    const [rawPath = '', rawQueryString = ''] = path.split('?');
    const result = await handler({
      version: '2.0',
      routeKey: '$default',
      rawPath,
      rawQueryString,
      headers: { authorization: `Bearer ${runToken}`, host: 'api.example', ...headers },
      requestContext: {
        domainName: 'api.example',
        http: { method, path: rawPath, protocol: 'HTTP/1.1', sourceIp: '::1', userAgent: '' },
      },
      body: body ?? null,
      isBase64Encoded: false,
    });
    told.push(inspect(result));
    return result;
  };

  test('answers by the same app', async () => {
    environment();
    expect(await call('GET', '/healthz')).toMatchObject({ statusCode: 200, body: '{"status":"ok"}' });
    expect(await call('GET', '/jobs')).toMatchObject({ statusCode: 200, isBase64Encoded: false });
    expect(JSON.parse((await call('GET', '/jobs')).body)).toMatchObject({
      jobs: [{ name: 'expire-sessions' }, {}, {}],
    });
    expect(JSON.parse((await call('GET', '/runs?slot=manual%3Afirst')).body)).toMatchObject({
      runs: [{ slot: 'manual:first' }],
    });
    expect(await call('GET', '/')).toMatchObject({
      statusCode: 200,
      headers: { 'content-type': 'text/html; charset=UTF-8' },
    });
    const html = { headers: { authorization: `Bearer ${wrongToken}`, accept: 'text/html' } };
    expect(await call('GET', '/', html)).toMatchObject({
      statusCode: 401,
      headers: { 'www-authenticate': expect.stringMatching(/^Basic/) as unknown },
    });
  });

  test('takes no notice of a body on GET', async () => {
    environment();
    expect(await call('GET', '/jobs', { body: '{}' })).toMatchObject({ statusCode: 200 });
    expect(await call('HEAD', '/jobs', { body: '{}' })).toMatchObject({ statusCode: 200, body: '' });
  });

  test('starts a run at the endpoint of the settings, and says 502 where it is refused', async () => {
    const lambda = await lambdaThat((attempt) => ({ status: attempt === 1 ? 202 : 403 }));
    environment({ CRONCE_LAMBDA_ENDPOINT: lambda.endpoint, CRONCE_FUNCTION_PREFIX: 'local-' });
    const body = { headers: { 'content-type': 'application/json' }, body: '{"params":{"a":1}}' };
    expect(await call('POST', '/jobs/expire-sessions/runs', body)).toMatchObject({ statusCode: 202 });
    expect(lambda.requests[0]?.head.url).toBe('/2015-03-31/functions/local-expire-sessions/invocations');
    expect(JSON.parse(lambda.requests[0]?.body ?? '')).toMatchObject({
      cronce: { job: 'expire-sessions', params: { a: 1 } },
    });
    expect(await call('POST', '/jobs/expire-sessions/runs', body)).toMatchObject({
      statusCode: 502,
      headers: { 'content-type': 'application/problem+json' },
    });
  });

  test('says that the database is down, and logs the cause', async () => {
    environment({ DATABASE_URL: `postgres://me:${wrongToken}@127.0.0.1:1/x` });
    const before = told.length;
    expect(await call('GET', '/healthz')).toMatchObject({ statusCode: 503 });
    expect(told.slice(before).join('')).toContain('cannot connect to PostgreSQL');
  });

  test.each([
    ['', 'DATABASE_URL is not set; give a postgres:// URL'],
    [`postgres://me:${wrongToken}%fade@127.0.0.1:1/x`, 'percent-encoding of the password'],
  ])('with settings that can’t be used it is unfit, and the log has the cure: %#', async (url, cure) => {
    environment({ DATABASE_URL: url });
    const before = told.length;
    expect(await call('GET', '/healthz')).toMatchObject({
      statusCode: 503,
      headers: { 'content-type': 'application/problem+json' },
      body: expect.not.stringContaining('DATABASE_URL') as string,
    });
    expect(told.slice(before).join('')).toContain(cure);
  });
});
