/** What a client sends is read strictly: a slip is 400 with its place, and nothing of it is 5xx, or changed in silence. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { client, expectProblem } from '../support/http.ts';
import { deliver } from '../support/runs.ts';

let db: TestDatabase;
let http: ReturnType<typeof client>;
beforeAll(async () => {
  db = await freshDatabase();
  http = client(db.url);
  await deliver(db.url, { scheduledFor: new Date('2026-11-29T12:00:00Z') }, 'return');
});
afterAll(() => db.drop());
afterEach(() => {
  http.started.length = 0;
  http.logged.length = 0;
});

const nested = (levels: number, open = '[', close = ']') => `${open.repeat(levels)}${close.repeat(levels)}`;
const bytes = (...parts: (string | number)[]) =>
  Buffer.concat(parts.map((part) => (typeof part === 'number' ? Buffer.of(part) : Buffer.from(part))));

describe('G4: a number is what was written', () => {
  test.each(
    [
      '7615917337495251231',
      '9007199254740993',
      '-9007199254740993',
      '123456789012345680000', // printed alike, and another number
      '0.12345678901234567890',
      '1.00000000000000001',
      '1e400',
      '-1e400',
      '1e-400',
      '1e999999999999999999999',
      `1${'0'.repeat(60_000)}1`,
      `1.${'0'.repeat(60_000)}1`,
      `1${'0'.repeat(400)}`,
    ].map((number) => [number.slice(0, 30), number] as const),
  )('or is refused: %s', async (_, number) => {
    const answer = await http.post('/jobs/tidy/runs', `{"params":{"order":${number}}}`);
    expectProblem(answer, 400, 'number_inexact', { pointer: '/params/order' });
    expect(http.started).toEqual([]);
  });

  test.each([
    '0',
    '-0',
    '1',
    '-1',
    '1.0',
    '1.50',
    '15e2',
    '1E3',
    '1e+3',
    '0.1',
    '0.30000000000000004',
    '1e21',
    '1e-7',
    '5e-324',
    '1.7976931348623157e308',
    '9007199254740991',
    '9007199254740992',
    '9007199254740994',
    '10000000000000000',
    '0e400',
  ])('%s is taken', async (number) => {
    const answer = await http.post('/jobs/tidy/runs', `{"params":[${number}]}`);
    const [started] = http.started;
    expect([answer.status, JSON.stringify(started?.cronce.params)]).toEqual([
      202,
      JSON.stringify([Number(number)]),
    ]);
  });

  test('and its place is told, wherever it is', async () => {
    const places: [string, string][] = [
      ['{"params": 7615917337495251231}', '/params'],
      ['{"params":{"a":[1,{"b/c~d":[[],[0,7615917337495251231]]}]}}', '/params/a/1/b~1c~0d/1/1'],
      ['{"params":{"a":{"x":1,"y":{}},"b":"7615917337495251231 [{,","c":1e999}}', '/params/c'],
      ['{"params":{"":[true,null,false,1e999]}}', '/params//3'],
    ];
    for (const [body, pointer] of places)
      expectProblem(await http.post('/jobs/tidy/runs', body), 400, 'number_inexact', { pointer });
  });

  test('in every body', async () => {
    expectProblem(await http.post('/jobs/tidy/pause', '{"reason":1e999}'), 400, 'number_inexact', {
      pointer: '/reason',
    });
  });
});

describe('G4: bytes are UTF-8', () => {
  test.each<[string, Buffer, number]>([
    ['a byte that is none', bytes('{"params":"a', 0xff, '"}'), 12],
    ['latin-1', bytes('{"params":"schl', 0xfc, 'ssel"}'), 15],
    ['a letter cut off', bytes('{"params":"', 0xe2, 0x82, '"}'), 11],
    ['a surrogate as UTF-8', bytes('{"params":"', 0xed, 0xa0, 0x80, '"}'), 11],
    ['a letter in too many bytes', bytes('{"params":"', 0xc0, 0x80, '"}'), 11],
    ['UTF-16', Buffer.from('{"params":1}', 'utf16le').subarray(0), -1],
    ['gzip', bytes(0x1f, 0x8b, 8, 0, 0, 0), 1],
  ])('%s is refused, with its place', async (_, body, byte) => {
    const answer = await http.post('/jobs/tidy/runs', body);
    if (byte === -1) expectProblem(answer, 400, 'not_json');
    else expectProblem(answer, 400, 'not_utf8', { byte });
    expect(http.started).toEqual([]);
  });

  test('whatever they say, with or without a mark before it', async () => {
    for (const mark of ['', '\ufeff']) {
      const answer = await http.post('/jobs/tidy/runs', `${mark}{"params":"ünïcode � 👍"}`);
      expect([answer.status, http.started.pop()?.cronce.params]).toEqual([202, 'ünïcode � 👍']);
    }
  });
});

describe('G1, G2: what can’t be stored', () => {
  test.each([
    ['NUL', '{"params":{"a":["b","\\u0000"]}}', 'bad_text', '/params/a/1'],
    ['NUL in a key', '{"params":{"a\\u0000":1}}', 'bad_text', '/params/a\u0000'],
    ['half a letter', '{"params":["\\ud800"]}', 'bad_text', '/params/0'],
    ['the other half', '{"params":["x\\udc00y"]}', 'bad_text', '/params/0'],
    ['NUL in a reason', '{"reason":"\\u0000"}', 'bad_text', '/reason'],
    ['13 levels', `{"params":${nested(13)}}`, 'too_deep', `/params${'/0'.repeat(12)}`],
    [
      '13 levels of objects',
      `{"params":${nested(13, '{"a":', '}').replace(':}', ':1}')}}`,
      'too_deep',
      undefined,
    ],
    ['30,000 lists', `{"params":${nested(30_000)}}`, 'too_deep', `/params${'/0'.repeat(12)}`],
    ['48,000 lists and nothing else', nested(48_000), 'too_deep', '/0'.repeat(13)],
    ['a key twice', '{"params":{"a":{"b":1,"c":2,"b":3}}}', 'duplicate_key', '/params/a/b'],
    ['a key twice, otherwise written', '{"params":{"a":1,"\\u0061":1}}', 'duplicate_key', '/params/a'],
    ['params twice', '{"params":1,"params":2}', 'duplicate_key', '/params'],
    ['__proto__ twice', '{"params":{"__proto__":1,"__proto__":2}}', 'duplicate_key', '/params/__proto__'],
  ])('is refused with its place: %s', async (_, body, code, pointer) => {
    const answer = await http.post('/jobs/tidy/runs', body);
    expectProblem(answer, 400, code, pointer === undefined ? {} : { pointer });
    expect(http.started).toEqual([]);
    expect(http.logged).toEqual([]);
  });

  test('12 levels are stored, a key may be in two objects, and a text may look like anything', async () => {
    for (const params of [nested(12), '[{"a":1},{"a":1}]', '{"a":{"a":"\\"a\\",\\\\"}}', '"\\\\u0000"']) {
      expect((await http.post('/jobs/tidy/runs', `{"params":${params}}`)).status).toBe(202);
      expect(http.started.pop()?.cronce.params).toEqual(JSON.parse(params));
    }
  });

  test.each(['__proto__', 'constructor', 'toString', 'hasOwnProperty'])(
    'a member that every object has is an unknown one: %s',
    async (name) => {
      expectProblem(await http.post('/jobs/tidy/runs', `{"${name}":1}`), 400, 'bad_body');
      expectProblem(await http.post('/jobs/tidy/pause', `{"${name}":1}`), 400, 'bad_body');
    },
  );

  test('a body that is too large is 413, whatever its headers say', async () => {
    const body = `{"params":"${'x'.repeat(97 * 1024)}"}`;
    for (const headers of [{}, { 'content-length': '5' }, { 'content-length': 'x' }])
      for (const path of ['/jobs/tidy/runs', '/jobs/tidy/pause'])
        expectProblem(await http.post(path, body, { headers }), 413, 'params_too_large');
    expect(http.started).toEqual([]);
  });
});

describe('G1, G6: the query', () => {
  test.each([
    ['slot=%00', 'slot'],
    ['job=%00', 'job'],
    ['job=a%00b', 'job'],
    ['before=%00', 'before'],
    ['status=%00', 'status'],
    ['slot=%ff', 'slot'],
    ['slot=%ED%A0%80', 'slot'],
    ['slot=%', 'slot'],
    ['slot=%E0%A4%A', 'slot'],
    ['slot=a&slot=b', 'slot'],
    ['slot=a&slot=a', 'slot'],
    ['limit=10&job=a&limit=10', 'limit'],
    ['status=done', 'status'],
    ['limit=', 'limit'],
  ])('is refused with the name that is at fault: %s', async (query, parameter) => {
    expectProblem(await http.ask(`/runs?${query}`), 400, 'bad_query', { parameter });
  });

  test.each([
    '__proto__=1',
    'constructor=1',
    'toString',
    '%00=1',
    '%ff=1',
    '=1',
    'Slot=a',
    'slot[]=a',
    'slot%20=a',
    'jobb=tidy',
  ])('has no such name, which is not repeated: %s', async (query) => {
    const answer = await http.ask(`/runs?${query}`);
    expectProblem(answer, 400, 'bad_query', {
      detail: 'In the query is a name that is none here.',
      known: ['job', 'slot', 'status', 'reason', 'before', 'limit'],
    });
  });

  test.each([
    '2026-11-29T12:00:00Z',
    '2026-11-29T13:00:00%2B01:00',
    '2026-11-29T13:00:00+01:00',
    '2026-11-29T07:00:00-05:00',
    '2026-11-29T17:45:00%2b05:45',
    '2026-11-29T12:00:00.000Z',
    '2026-11-29T12:00:00.999Z',
    '2026-11-29T12:00Z',
  ])('finds the slot of 12:00 however it is written: %s', async (slot) => {
    const { status, json } = await http.ask(`/runs?slot=${slot}`);
    expect(status).toBe(200);
    expect(json['runs']).toMatchObject([{ slot: '2026-11-29T12:00:00Z' }]);
  });

  test.each(['2026-11-29T12:00:01Z', '2026-11-29T12:00:00%20Z', '2026-11-29', 'manual:1'])(
    'and no other: %s',
    async (slot) => {
      expect((await http.ask(`/runs?slot=${slot}`)).json['runs']).toEqual([]);
    },
  );

  test('is none where there is nothing to ask, least of all where it would start something else than was meant', async () => {
    for (const path of ['/jobs', '/jobs/tidy', '/runs/00000000-0000-7000-8000-000000000000'])
      expectProblem(await http.ask(`${path}?slot=2026-11-29T12:00:00Z`), 400, 'bad_query', { known: [] });
    for (const path of ['/jobs/tidy/runs', '/jobs/tidy/pause', '/jobs/tidy/resume'])
      expectProblem(await http.post(`${path}?slot=2026-11-29T12:00:00Z`), 400, 'bad_query', { known: [] });
    expect(http.started).toEqual([]);
    expect((await http.ask('/jobs?')).status).toBe(200);
  });
});

test.each([
  '/jobs/%00',
  '/jobs/a%00b/runs',
  '/runs/%00',
  '/%00',
  '/jobs/%ff',
  '/jobs/%ED%A0%80',
  '/jobs/%E0%A4%A',
  '/runs/%',
])('a path that is no text is 400: %s', async (path) => {
  expectProblem(await http.ask(path), 400, 'bad_path');
  expectProblem(await http.ask(path, { token: null }), 401, 'unauthorized');
});

test.each(['/jobs/a+b', '/jobs/%2B', '/jobs/%F0%9F%91%8D', '/jobs/..%2f', '/jobs/%25'])(
  'one that is a text, and none of ours, is 404: %s',
  async (path) => {
    expect((await http.ask(path)).status).toBe(404);
  },
);
