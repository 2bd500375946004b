/** How Lambda is told of a request, by whatever lies before it; and what is none is refused, with a line in the log. */
import { createServer } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { handler } from '../../functions/http.ts';
import { incomingOf } from '../../src/lambda/request.ts';
import { Problem } from '../../src/http/problem.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { alb, v1, v2, type Sent } from '../support/fronts.ts';
import { tokens } from '../support/http.ts';
import { deliver } from '../support/runs.ts';

let db: TestDatabase;
let endpoint: string;
const invoked: string[] = [];
const lambda = createServer((request, response) => {
  request.resume();
  invoked.push(request.url ?? '');
  response.writeHead(202).end();
});
beforeAll(async () => {
  db = await freshDatabase();
  await deliver(db.url, { scheduledFor: new Date('2026-11-29T12:00:00Z') }, 'return');
  lambda.listen(0, '127.0.0.1');
  await once(lambda, 'listening');
  endpoint = `http://127.0.0.1:${(lambda.address() as AddressInfo).port}`;
});
afterAll(async () => {
  lambda.closeAllConnections();
  lambda.close();
  await db.drop();
});

let logged = '';
beforeEach(() => {
  logged = '';
  invoked.length = 0;
  const all = {
    DATABASE_URL: db.url,
    CRONCE_READ_TOKENS: tokens.read,
    CRONCE_RUN_TOKENS: tokens.run,
    CRONCE_LAMBDA_ENDPOINT: endpoint,
  };
  for (const [key, value] of Object.entries(all)) vi.stubEnv(key, value);
  for (const stream of [process.stdout, process.stderr])
    vi.spyOn(stream, 'write').mockImplementation((text) => {
      logged += String(text);
      return true;
    });
  onTestFinished(() => {
    vi.unstubAllEnvs();
    vi.restoreAllMocks();
  });
});

const authorization = `Bearer ${tokens.run}`;
/** With a right token, unless the test has another. */
const allowed =
  (front: (sent: Sent) => object) =>
  (sent: Sent): object =>
    front({ ...sent, headers: { authorization, ...sent.headers } });

const kinds: readonly (readonly [name: string, event: (sent: Sent) => unknown, base: string])[] = [
  ['an HTTP API', allowed(v2('$default')), ''],
  ['an HTTP API with a stage', allowed(v2('prod')), '/prod'],
  ['a function URL', allowed(v2('$default', 'xyz.lambda-url.eu-central-1.on.aws')), ''],
  ['a REST API', allowed(v1('prod')), '/prod'],
  ['a load balancer', allowed(alb(false)), ''],
  ['a load balancer with lists', allowed(alb(true)), ''],
];

const json = (answer: { readonly body: string }) => JSON.parse(answer.body) as Record<string, unknown>;

describe.each(kinds)('G6: by %s', (_, event, base) => {
  test('what is asked for is answered', async () => {
    expect(await handler(event({ path: '/healthz' }))).toMatchObject({
      statusCode: 200,
      body: '{"status":"ok"}',
    });
    expect(json(await handler(event({ path: '/jobs' })))['jobs']).toHaveLength(3);
    expect(json(await handler(event({ path: '/jobs/expire-sessions' })))).toMatchObject({
      name: 'expire-sessions',
    });
    expect(await handler(event({ path: '/nothing' }))).toMatchObject({ statusCode: 404 });
    expect(await handler(event({ path: '/jobs', headers: { authorization: '' } }))).toMatchObject({
      statusCode: 401,
    });
  });

  test('a query comes as it was meant', async () => {
    const slots = ['2026-11-29T13:00:00+01:00', '2026-11-29T12:00:00Z'];
    for (const slot of slots) {
      const query = [
        ['slot', slot],
        ['job', 'tidy'],
      ] as const;
      expect(json(await handler(event({ path: '/runs', query })))['runs']).toMatchObject([
        { slot: slots[1] },
      ]);
    }
    const odd = [['slot', 'manual:a&b=c d+e%41ü👍']] as const;
    expect(await handler(event({ path: '/runs', query: odd }))).toMatchObject({ statusCode: 200 });
    expect(await handler(event({ path: '/runs', query: [['slot', '\0']] }))).toMatchObject({
      statusCode: 400,
    });
    expect(await handler(event({ path: '/runs', query: [['__proto__', '1']] }))).toMatchObject({
      statusCode: 400,
    });
  });

  test('what is said twice is refused, where that can be told', async () => {
    const answer = await handler(
      event({
        path: '/runs',
        query: [
          ['job', 'a'],
          ['job', 'b'],
        ],
      }),
    );
    const isTold = !JSON.stringify(
      event({
        path: '/',
        query: [
          ['q', '1'],
          ['q', '2'],
        ],
      }),
    ).includes('"queryStringParameters":{"q":"2"},"body"');
    expect(answer.statusCode).toBe(isTold ? 400 : 200);
  });

  test('a run is started, and its links begin with what lies before our root', async () => {
    const body = '{"params":{"a":"ü"}}';
    for (const [sent, base64] of [
      [body, false],
      [Buffer.from(body).toString('base64'), true],
    ] as const) {
      const headers = { 'content-type': 'application/json' };
      const answer = await handler(
        event({ method: 'POST', path: '/jobs/expire-sessions/runs', headers, body: sent, base64 }),
      );
      expect([answer.statusCode, invoked.pop()]).toEqual([
        202,
        '/2015-03-31/functions/expire-sessions/invocations',
      ]);
      expect(answer.headers['location']).toMatch(
        new RegExp(`^${base}/runs\\?job=expire-sessions&slot=manual`),
      );
      expect(json(answer)['runs']).toBe(answer.headers['location']);
    }
  });

  test('the page’s links lead back to it', async () => {
    const { body, headers } = await handler(event({ path: '/', headers: { accept: 'text/html' } }));
    const [, found = ''] = /<base href="([^"]*)"/.exec(body) ?? [];
    expect(found).toBe(base === '' ? '' : `${base}/`);
    const link = /href="(runs\/[^"]+)"/.exec(body)?.[1] ?? '';
    expect(new URL(link, `https://here${found || '/'}`).pathname).toMatch(
      new RegExp(`^${base}/runs/[0-9a-f-]{36}$`),
    );
    expect(headers['content-security-policy']).toContain(base === '' ? "base-uri 'none'" : "base-uri 'self'");
  });

  test('a wrong token is logged with the address that it came from', async () => {
    expect(
      await handler(
        event({
          path: '/jobs/secret-name',
          headers: { authorization: `Bearer ${tokens.wrong}`, Authorization: `Bearer ${tokens.wrong}` },
        }),
      ),
    ).toMatchObject({ statusCode: 401 });
    expect(logged).toMatch(/"message":"a token was refused".*/);
    expect(logged).toContain('"source":"203.0.113.9"');
    expect(logged).toContain('"route":"/jobs/:name"');
    expect(logged).not.toMatch(/wrong-token|secret-name/);
  });

  test.each(['TRACE', 'CONNECT', 'TRACK', 'trace', 'GE T', '', 'PROPFIND', 'x'.repeat(100)])(
    'a method that is none here is 405: %s',
    async (method) => {
      expect(await handler(event({ method, path: '/jobs' }))).toMatchObject({ statusCode: 405 });
    },
  );

  test.each([
    ['a header value beyond HTTP', { 'x-odd': '✓' }],
    ['a header with a line in it', { 'x-odd': 'a\r\nset-cookie: b' }],
    ['a header name that is none', { 'x odd': 'a' }],
  ])('%s is 400', async (_name, headers) => {
    const answer = await handler(event({ path: '/jobs', headers }));
    expect([answer.statusCode, json(answer)['code']]).toEqual([400, 'bad_header']);
    expect(answer.headers).toMatchObject({
      'content-type': 'application/problem+json',
      'cache-control': 'no-store',
    });
  });

  test('a key beyond ASCII is no other key', async () => {
    const headers = { 'idempotency-key': 'schlüssel', 'content-type': 'application/json' };
    const answer = await handler(
      event({ method: 'POST', path: '/jobs/expire-sessions/runs', headers, body: '{}' }),
    );
    expect([answer.statusCode, json(answer)['code'], invoked]).toEqual([400, 'bad_key', []]);
  });

  test.each([
    ['/jobs?a=b', 404],
    ['/jobs#a', 404],
    ['//jobs', 404],
    ['/jobs/..%2f..%2f', 404],
    ['/jobs\\tidy', 404],
    ['/\0', 400],
    ['/jobs\0', 400],
    ['/jo\tbs', 404],
    ['/jobs ', 404],
    ['/%', 400],
    ['/%00', 400],
  ])('an odd path is answered: %j', async (path, status) => {
    expect((await handler(event({ path }))).statusCode).toBe(status);
  });

  test.each(['', 'a b', 'a/b', 'a@b', '[', 'a?b', 'x:99999', '::1'])(
    'an odd host does no harm: %j',
    async (host) => {
      const sent = event({ path: '/jobs' }) as {
        requestContext: { domainName?: string };
        headers?: { host?: string };
        multiValueHeaders?: { host?: string[] };
      };
      delete sent.requestContext.domainName;
      if (sent.headers) sent.headers.host = host;
      if (sent.multiValueHeaders) sent.multiValueHeaders.host = [host];
      expect((await handler(sent)).statusCode).toBe(200);
    },
  );
});

test('a load balancer that gives lists is given lists', async () => {
  expect(await handler(alb(true)({ path: '/healthz' }))).toMatchObject({
    multiValueHeaders: { 'cache-control': ['no-store'] },
  });
  expect(await handler(alb(false)({ path: '/healthz' }))).not.toHaveProperty('multiValueHeaders');
  expect(await handler(v1('prod')({ path: '/healthz' }))).not.toHaveProperty('multiValueHeaders');
});

describe('what lies before our root', () => {
  const baseIn = (event: unknown) => {
    const { base, request } = incomingOf(event);
    return [base, new URL(request.url).pathname];
  };
  const context = { http: { method: 'GET' }, stage: '$default' };
  test.each<[string, unknown, string, string]>([
    ['nothing', { rawPath: '/jobs', requestContext: context }, '', '/jobs'],
    ['a stage', { rawPath: '/prod/jobs', requestContext: { ...context, stage: 'prod' } }, '/prod', '/jobs'],
    [
      'a stage, and its root',
      { rawPath: '/prod', requestContext: { ...context, stage: 'prod' } },
      '/prod',
      '/',
    ],
    [
      'a stage, with a slash',
      { rawPath: '/prod/', requestContext: { ...context, stage: 'prod' } },
      '/prod',
      '/',
    ],
    [
      'a stage that is not in the path',
      { rawPath: '/jobs', requestContext: { ...context, stage: 'prod' } },
      '',
      '/jobs',
    ],
    [
      'a stage that a route begins like',
      { rawPath: '/jobs/x', requestContext: { ...context, stage: 'job' } },
      '',
      '/jobs/x',
    ],
    [
      'a route',
      { rawPath: '/ops/cronce/jobs', pathParameters: { proxy: 'jobs' }, requestContext: context },
      '/ops/cronce',
      '/jobs',
    ],
    [
      'a REST API’s stage',
      { httpMethod: 'GET', path: '/jobs', requestContext: { stage: 'prod', path: '/prod/jobs' } },
      '/prod',
      '/jobs',
    ],
    [
      'the same, and its root',
      { httpMethod: 'GET', path: '/', requestContext: { stage: 'prod', path: '/prod' } },
      '/prod',
      '/',
    ],
    [
      'a domain’s mapping',
      {
        httpMethod: 'GET',
        path: '/cronce/jobs',
        pathParameters: { proxy: 'jobs' },
        requestContext: { stage: 'prod', path: '/cronce/jobs' },
      },
      '/cronce',
      '/jobs',
    ],
    [
      'something odd',
      { httpMethod: 'GET', path: '/jobs', requestContext: { path: '/"><script>/jobs' } },
      '',
      '/jobs',
    ],
    ['no slash', { rawPath: 'jobs', requestContext: context }, '', '/jobs'],
  ])('%s', (_, event, base, path) => {
    expect(baseIn(event)).toEqual([base, path]);
  });
});

describe('what is no HTTP request', () => {
  test.each<[string, unknown]>([
    ['nothing', undefined],
    ['null', null],
    ['a text', 'warm'],
    ['a number', 1],
    ['an empty object', {}],
    ['a list', []],
    [
      'a rule event',
      { source: 'aws.events', time: '2026-11-29T12:00:00Z', 'detail-type': 'Scheduled Event', detail: {} },
    ],
    ['a run request', { cronce: { job: 'tidy', trigger: 'manual', slot: 'manual:1' } }],
    ['a queue’s', { Records: [{ messageId: '1', body: '{}', eventSource: 'aws:sqs' }] }],
    ['a websocket’s', { requestContext: { routeKey: '$connect', eventType: 'CONNECT', connectionId: 'x' } }],
    ['an authorizer’s', { type: 'TOKEN', methodArn: 'arn', authorizationToken: 'x' }],
    [
      'VPC Lattice’s',
      { version: '2.0', path: '/jobs', method: 'GET', headers: {}, requestContext: { serviceArn: 'x' } },
    ],
    ['a path without a method', { rawPath: '/jobs', requestContext: {} }],
    ['a method that is no text', { rawPath: '/jobs', requestContext: { http: { method: 5 } } }],
    ['a path that is no text', { httpMethod: 'GET', path: 5, requestContext: {} }],
    ['no context', { rawPath: '/jobs', requestContext: null }],
    [
      'half a letter in the query',
      { rawPath: '/runs', rawQueryString: 'slot=\ud800', requestContext: { http: { method: 'GET' } } },
    ],
    [
      'half a letter in a REST API’s',
      { httpMethod: 'GET', path: '/runs', queryStringParameters: { slot: '\ud800' }, requestContext: {} },
    ],
  ])('is refused, and the log has a line: %s', async (_, event) => {
    const answer = await handler(event);
    expect([answer.statusCode, json(answer)['code']]).toEqual([400, 'foreign_event']);
    expect(answer.headers).toMatchObject({
      'content-type': 'application/problem+json',
      'cache-control': 'no-store',
    });
    expect(logged.trim().split('\n')).toHaveLength(1);
    expect(logged).toContain('an event was refused');
  });

  test.each<[string, object]>([
    ['no headers', { headers: null }],
    ['a header that is no text', { headers: { authorization: 5, host: {} } }],
    ['a body that is no text', { headers: { authorization }, body: { a: 1 } }],
    ['a query that is no text', { headers: { authorization }, rawQueryString: 5 }],
    ['cookies that are none', { headers: { authorization }, cookies: [1, null] }],
  ])('odd, but a request: %s', async (_, changes) => {
    const { statusCode } = await handler({ ...(v2('$default')({ path: '/jobs' }) as object), ...changes });
    expect([200, 401]).toContain(statusCode);
  });

  test('base64 that is none, or half a letter, is the client’s fault', async () => {
    const headers = { authorization, 'content-type': 'application/json' };
    for (const [body, base64] of [
      ['!!!!', true],
      ['\ud800', false],
      ['/w==', true],
    ] as const) {
      const answer = await handler(
        v2('$default')({ method: 'POST', path: '/jobs/expire-sessions/runs', headers, body, base64 }),
      );
      expect([answer.statusCode, invoked]).toEqual([
        body === '!!!!' ? 202 : 400,
        body === '!!!!' ? [expect.any(String)] : [],
      ]);
      invoked.length = 0;
    }
    expect(() => incomingOf(null)).toThrow(Problem);
  });
});
