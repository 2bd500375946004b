/** Requests as nobody would send them, and many that somebody might: drawn by fast-check, so a seed gives them again. */
import fc from 'fast-check';
import { randomFrom } from '../support/random.ts';

export interface Drawn {
  readonly method: string;
  /** As on the wire. */
  readonly path: string;
  readonly query: string;
  readonly headers: readonly (readonly [name: string, value: string])[];
  readonly body: Uint8Array;
}

const some = fc.constantFrom;
const uuid = '01a23065-c25e-7765-bab7-5d98434b1962';
const odd = [
  '',
  '.',
  '..',
  '%',
  '%00',
  '%ff',
  '%ED%A0%80',
  '%E0%A4%A',
  '%2e%2e',
  '%2F',
  '__proto__',
  'constructor',
  '//',
  '?',
  '#',
  '\\',
  '+',
  '*',
  '%0d%0a',
  'ü',
];
const jobNames = ['tidy', 'report', 'by-hand', 'expire-sessions', 'send-notifications', 'nobody'];

const text = fc.oneof(
  fc.string({ unit: 'grapheme', maxLength: 20 }).map(encodeURIComponent),
  fc.string({ unit: 'binary-ascii', maxLength: 20 }),
  fc.string({ maxLength: 20 }).map(encodeURIComponent),
  some(...odd),
);
const segment = fc.oneof(
  text,
  some('jobs', 'runs', 'healthz', 'pause', 'resume', 'cancel', uuid, ...jobNames),
);
const job = fc.oneof({ weight: 9, arbitrary: some(...jobNames) }, { weight: 1, arbitrary: text });

/** Mostly a route and its method. */
const target = fc.oneof(
  { weight: 8, arbitrary: job.map((name) => ['POST', `/jobs/${name}/runs`] as const) },
  {
    weight: 2,
    arbitrary: fc
      .tuple(job, some('pause', 'resume'))
      .map(([name, verb]) => ['POST', `/jobs/${name}/${verb}`] as const),
  },
  { weight: 5, arbitrary: fc.constant(['GET', '/runs'] as const) },
  {
    weight: 3,
    arbitrary: some('/', '/jobs', '/healthz', '/prod/jobs', `/runs/${uuid}`).map(
      (path) => ['GET', path] as const,
    ),
  },
  { weight: 1, arbitrary: job.map((name) => ['GET', `/jobs/${name}`] as const) },
  {
    weight: 3,
    arbitrary: fc
      .tuple(
        some('GET', 'POST', 'HEAD', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'TRACE', 'PROPFIND', 'get'),
        fc.oneof(
          some('/', '/jobs', '/runs', '/jobs/tidy/runs'),
          fc.array(segment, { maxLength: 5 }).map((segments) => `/${segments.join('/')}`),
        ),
      )
      .map(([method, path]) => [method, path] as const),
  },
);

const time = fc.oneof(
  fc.date({ noInvalidDate: true }).map((at) => at.toISOString()),
  some(
    '2026-11-29T12:00:00Z',
    '2026-11-29T13:00:00+01:00',
    '2026-11-29T12:00:00.250Z',
    '2026-02-30T00:00:00Z',
    '2026-11-29',
    '1083-09-12T07:57:15Z',
    '+275760-09-13T00:00:00Z',
    '2026-11-29T24:00:00Z',
    '9999-12-31T23:59:60Z',
  ),
);
const parameter = fc.oneof(
  time.map(encodeURIComponent),
  time,
  text,
  some('running', 'succeeded', 'held', uuid, '1', '0', '200', '201', '-1', '1e1', 'manual%3A1'),
);
const name = fc.oneof(
  { weight: 8, arbitrary: some('job', 'slot', 'status', 'reason', 'before', 'limit') },
  { weight: 1, arbitrary: text },
);
const query = fc.oneof(
  { weight: 6, arbitrary: fc.constant('') },
  {
    weight: 2,
    arbitrary: fc
      .array(fc.tuple(name, parameter), { maxLength: 4 })
      .map((pairs) => pairs.map((pair) => pair.join('=')).join('&')),
  },
  { weight: 1, arbitrary: text },
);

// --- bodies -------------------------------------------------------------------------------------

const number = fc.oneof(
  some(
    '0',
    '-0',
    '1e400',
    '-1e-400',
    '9007199254740993',
    '7615917337495251231',
    '1e21',
    '0.1',
    '1.0',
    '1e9999999999',
  ),
  fc.double().map((one) => JSON.stringify(one)),
  fc
    .tuple(fc.bigInt(), fc.nat(10 ** 9), fc.integer({ min: -400, max: 400 }))
    .map(([a, b, c]) => `${a}.${b}e${c}`),
  fc.nat(5_000).map((digits) => `1${'0'.repeat(digits)}1`),
);
const string = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 30 }).map((one) => JSON.stringify(one)),
  some('"\\u0000"', '"\\ud800"', '"\\udc00x"', '"\\\\"', '"\\""', '"{"', '"__proto__"', '"\u2028"'),
);
const json = fc.letrec<{ value: string }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 6, withCrossShrink: true },
    number,
    string,
    some('true', 'false', 'null'),
    fc.array(tie('value'), { maxLength: 4 }).map((all) => `[${all.join(',')}]`),
    fc
      .array(fc.tuple(string, tie('value')), { maxLength: 4 })
      .map((all) => `{${all.map((pair) => pair.join(':')).join(',')}}`),
  ),
})).value;
const nest = fc.tuple(fc.nat(60_000), some('[', '{"a":', '[1,')).map(([levels, open]) => {
  const close = open.startsWith('{') ? '}' : ']';
  return `${open.repeat(levels)}1${close.repeat(levels)}`;
});
const timeJson = fc.oneof(
  { weight: 4, arbitrary: time.map((one) => JSON.stringify(one)) },
  { weight: 1, arbitrary: json },
);
const member = fc.oneof(
  { weight: 4, arbitrary: json.map((value) => `"params":${value}`) },
  { weight: 1, arbitrary: nest.map((value) => `"params":${value}`) },
  { weight: 2, arbitrary: timeJson.map((value) => `"slot":${value}`) },
  { weight: 2, arbitrary: timeJson.map((value) => `"scheduledFor":${value}`) },
  { weight: 2, arbitrary: fc.oneof(string, json).map((value) => `"reason":${value}`) },
  { weight: 1, arbitrary: fc.tuple(string, json).map((pair) => pair.join(':')) },
);
const object = fc.array(member, { maxLength: 3 }).map((members) => `{${members.join(',')}}`);
const body = fc.oneof(
  { weight: 3, arbitrary: fc.constant(Buffer.alloc(0)) },
  { weight: 6, arbitrary: object.map((one) => Buffer.from(one)) },
  { weight: 2, arbitrary: fc.oneof(json, nest).map((one) => Buffer.from(one)) },
  { weight: 1, arbitrary: fc.uint8Array({ maxLength: 60 }).map((one) => Buffer.from(one)) },
  {
    weight: 1,
    arbitrary: fc
      .tuple(object, fc.nat(40), fc.uint8Array({ minLength: 1, maxLength: 3 }))
      .map(([one, at, bytes]) => {
        const whole = Buffer.from(one);
        return Buffer.concat([whole.subarray(0, at), bytes, whole.subarray(at)]);
      }),
  },
  {
    weight: 1,
    arbitrary: fc
      .integer({ min: 60_000, max: 200_000 })
      .map((length) => Buffer.from(`{"params":"${'x'.repeat(length)}"}`)),
  },
);

// --- headers ------------------------------------------------------------------------------------

/** What a line of a request may hold at all; the rest is no matter of ours. */
const value = fc
  .string({ unit: 'binary-ascii', maxLength: 30 })
  .map((one) => one.replaceAll(/\p{Cc}/gu, ' '));
const optional = (header: string, values: fc.Arbitrary<string>, rarely = 2) =>
  fc.oneof(
    { weight: rarely, arbitrary: fc.constant([]) },
    { weight: 1, arbitrary: values.map((one) => [[header, one] as const]) },
  );
const key = fc.oneof(
  some('"K"', 'K', '""', '"', '"a\\"', '"a";b', '"a", "b"', 'schlüssel', ' ', 'x'.repeat(201)),
  value,
  fc.nat(60).map((one) => `"key-${one}"`),
);
const headers = fc
  .tuple(
    fc.oneof(
      { weight: 9, arbitrary: fc.constant([['content-type', 'application/json'] as const]) },
      { weight: 1, arbitrary: optional('content-type', value) },
    ),
    optional('idempotency-key', key),
    optional(
      'prefer',
      fc.oneof(some('wait=0', 'wait=x', 'wait=-1', 'respond-async', 'handling=strict', 'wait="0"'), value),
    ),
    optional('accept', some('text/html', '*/*', 'application/json')),
    optional('x-forwarded-proto', some('http', 'https', 'ftp', '')),
    optional('cookie', value, 9),
    optional('x-odd', value, 9),
  )
  .map((all) => all.flat());

const drawn: fc.Arbitrary<Drawn> = fc
  .record({ target, query, headers, body })
  .map(({ target: [method, path], ...others }) => ({ method, path, ...others }));

/** The n-th slice of a seed. */
export function drawRequests(seed: number, slice: number, count: number): Drawn[] {
  const own = Math.floor(randomFrom(seed * 100_003 + slice)() * 2_147_483_647);
  return fc.sample(drawn, { seed: own, numRuns: count });
}
