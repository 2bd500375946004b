import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { Webhook } from 'standardwebhooks';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { coordinate } from '../../src/coordinate.ts';
import { defineJob } from '../../src/job.ts';
import { findRun } from '../../src/operate/history.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';
import type { Refusal } from '../../src/sinks/sink.ts';
import { WebhookError, webhookSink, type WebhookOptions } from '../../src/sinks/webhook.ts';
import { coordinatorOn, deliveryFor, keepingLogger, targetOf } from '../support/coordinator.ts';
import { freshDatabase } from '../support/database.ts';
import { keepsToTheContract, recordOf, type Behaviour } from './contract.ts';

interface Received {
  readonly path: string;
  readonly headers: IncomingMessage['headers'];
  readonly body: string;
}

type Answer = (received: Received, response: ServerResponse) => void;

/** Somebody's server; what it got, and how it answers. */
async function startReceiver() {
  const received: Received[] = [];
  const receiver = {
    url: '',
    received,
    answer: ((_, response) => response.writeHead(204).end()) as Answer,
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
  const server = createServer((request, response) => {
    void text(request).then((body) => {
      const one = { path: request.url ?? '', headers: request.headers, body };
      received.push(one);
      receiver.answer(one, response);
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  receiver.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return receiver;
}

let receiver: Awaited<ReturnType<typeof startReceiver>>;
beforeAll(async () => void (receiver = await startReceiver()));
afterAll(async () => receiver.stop());
beforeEach(() => {
  receiver.received.length = 0;
  receiver.answer = (_, response) => response.writeHead(204).end();
});

const secret = () => `whsec_${randomBytes(32).toString('base64')}`;

async function send(options: Partial<WebhookOptions>, run: RunRecord = recordOf()) {
  const sink = webhookSink({ url: `${receiver.url}/hook`, allowPrivate: true, ...options });
  const refused: Refusal[] = [];
  const arrived = await sink.send(
    [run],
    AbortSignal.timeout(10_000),
    (_, refusal) => void refused.push(refusal),
  );
  return { arrived: arrived.has(run.id), refusal: refused[0] };
}

keepsToTheContract('a webhook', async () => {
  const server = await startReceiver();
  const arrived: string[] = [];
  let behave: Behaviour = () => 'take';
  server.answer = ({ headers }, response) => {
    const id = String(headers['webhook-id']);
    const how = behave(id);
    if (how === 'take') arrived.push(id);
    if (how === 'hang up') response.destroy();
    else if (how !== 'hang') response.writeHead(how === 'take' ? 200 : 500).end('whatever');
  };
  return {
    sink: (wanted = {}) =>
      webhookSink({ url: `${server.url}/secret-path`, secrets: [secret()], allowPrivate: true, ...wanted }),
    arrived,
    behave: (behaviour) => (behave = behaviour),
    stop: async () => server.stop(),
  };
});

describe('what is posted', () => {
  it('is signed by each secret as Standard Webhooks has it, and says of which run it is', async () => {
    const [one, other] = [secret(), secret()];
    const run = recordOf({ output: { rows: 3 } });
    expect(await send({ secrets: [one, other] }, run)).toEqual({ arrived: true, refusal: undefined });
    const { headers, body } = receiver.received[0] as Received;
    expect(headers).toMatchObject({ 'webhook-id': run.id, 'content-type': 'application/json' });
    for (const known of [one, other])
      expect(new Webhook(known).verify(body, headers as Record<string, string>)).toEqual({
        type: 'run.succeeded',
        timestamp: run.finishedAt,
        data: run,
      });
    expect(() => new Webhook(secret()).verify(body, headers as Record<string, string>)).toThrow('signature');
  });

  it('is cut where it is larger than what receivers take, and says so', async () => {
    await send({}, recordOf({ output: 'x'.repeat(200_000) }));
    const [{ body }] = receiver.received as [Received];
    expect(body.length).toBeLessThan(70_000);
    expect(JSON.parse(body)).toMatchObject({ data: { output: { cut: 'too large for an event' } } });
  });

  it.each([
    ['succeeded', '/ping/abc'],
    ['skipped', '/ping/abc'],
    ['failed', '/ping/abc/fail'],
    ['missed', '/ping/abc/fail'],
    ['lost', '/ping/abc/fail'],
  ] as const)('as a ping of healthchecks: %s at %s, with the run as its id', async (status, path) => {
    const run = recordOf({ status });
    await send({ url: `${receiver.url}/ping/abc`, shape: 'healthchecks' }, run);
    expect(receiver.received[0]?.path).toBe(`${path}?rid=${run.id}`);
    expect(receiver.received[0]?.body).toContain(`tidy 2026-11-29T12:00:00Z ${status}`);
  });

  it('for Slack is a text that mentions nobody', async () => {
    const error = { name: 'Error', message: '<!channel> & <https://evil.example|here>' };
    await send({ shape: 'slack' }, recordOf({ status: 'failed', error }));
    expect(JSON.parse(receiver.received[0]?.body ?? '')).toEqual({
      text: ':red_circle: tidy 2026-11-29T12:00:00Z failed, attempt 1/3: Error: &lt;!channel&gt; &amp; &lt;https://evil.example|here&gt;',
    });
  });
});

describe('what is not taken', () => {
  it.each([400, 404, 410, 429, 500, 503])('by %i has that as its code', async (status) => {
    receiver.answer = (_, response) => response.writeHead(status).end('details that nobody keeps');
    const { arrived, refusal } = await send({});
    expect([arrived, refusal]).toEqual([
      false,
      { code: `HTTP ${status}`, message: 'the webhook did not take it' },
    ]);
  });

  it('never answered ends with the time limit', async () => {
    receiver.answer = () => undefined;
    const { arrived, refusal } = await send({ timeoutMs: 100 });
    expect([arrived, refusal?.code]).toEqual([false, 'TimeoutError']);
  });

  it('an answer of ten megabytes, or without an end, is not read', async () => {
    let written = 0;
    receiver.answer = (_, response) => {
      response.writeHead(200);
      const more = () => {
        while (!response.destroyed && written < 10_000_000 && response.write('x'.repeat(65_536)))
          written += 65_536;
        if (!response.destroyed && written < 10_000_000) response.once('drain', more);
      };
      more();
    };
    expect((await send({})).arrived).toBe(true);
    expect(written).toBeLessThan(10_000_000);
  });

  it('nobody listens there', async () => {
    const gone = await startReceiver();
    await gone.stop();
    expect((await send({ url: gone.url })).refusal?.code).toBe('ECONNREFUSED');
  });
});

describe('redirects', () => {
  const redirect =
    (status: number, location: string): Answer =>
    (one, response) => {
      if (one.path === '/hook') response.writeHead(status, { location }).end();
      else response.writeHead(204).end();
    };

  it.each([307, 308])('%i within the same host is followed, with the same message', async (status) => {
    receiver.answer = redirect(status, '/other');
    expect((await send({})).arrived).toBe(true);
    const [first, second] = receiver.received as [Received, Received];
    expect([second.path, second.body]).toEqual(['/other', first.body]);
  });

  it.each([301, 302, 303])('%i, which would make a GET of it, is none', async (status) => {
    receiver.answer = redirect(status, '/other');
    expect((await send({})).refusal).toMatchObject({
      code: `HTTP ${status}`,
      message: expect.stringContaining('none for a POST') as string,
    });
    expect(receiver.received).toHaveLength(1);
  });

  it('to another host hands nobody the record', async () => {
    const other = await startReceiver();
    receiver.answer = redirect(307, `${other.url}/hook`);
    expect((await send({})).refusal).toMatchObject({
      code: 'HTTP 307',
      message: expect.stringContaining('another host') as string,
    });
    expect(other.received).toEqual([]);
    await other.stop();
  });

  it.each(['/hook', '', 'http://[', '//'])('in a circle, or to %o, ends', async (location) => {
    receiver.answer = (_, response) => response.writeHead(308, { location }).end();
    expect((await send({})).arrived).toBe(false);
    expect(receiver.received.length).toBeLessThan(5);
  });
});

describe('private addresses', () => {
  it.each([
    'https://127.0.0.1/hook',
    'https://[::1]/hook',
    'https://[::ffff:127.0.0.1]/hook',
    'https://[::ffff:7f00:1]/hook',
    'https://[64:ff9b::10.0.0.1]/hook',
    'https://10.1.2.3/hook',
    'https://172.16.0.1/hook',
    'https://192.168.1.1/hook',
    'https://169.254.169.254/latest/meta-data',
    'https://[fd00::1]/hook',
    'https://[fe80::1]/hook',
    'https://0.0.0.0/hook',
    'https://0x7f.1/hook',
    'https://2130706433/hook',
    'https://localhost/hook',
  ])('%s is asked for nothing', async (url) => {
    const { arrived, refusal } = await send({ url, allowPrivate: false });
    expect([arrived, refusal?.code]).toEqual([false, 'PrivateAddress']);
  });

  it('are asked where that is allowed, also by name', async () => {
    expect((await send({ url: receiver.url.replace('127.0.0.1', 'localhost') })).arrived).toBe(true);
  });

  it('and those of the Internet are not taken for such', async () => {
    for (const url of ['https://8.8.8.8:9/x', 'https://[2606:4700::1111]:9/x']) {
      const { refusal } = await send({ url, allowPrivate: false, timeoutMs: 50 });
      expect(refusal?.code).not.toBe('PrivateAddress');
    }
  });
});

describe('options that can’t be', () => {
  it.each<[Partial<WebhookOptions>, RegExp]>([
    [{ url: 'nonsense' }, /^url of a webhook is no https:\/\/ URL/],
    [{ url: 'ftp://example.com' }, /^url of a webhook is no https:\/\/ URL/],
    [
      { url: 'http://example.com/secret-path', allowPrivate: false },
      /^url of a webhook is http, which anyone/,
    ],
    [{ secrets: ['hunter2hunter2hunter2hunter2'] }, /^secrets\[0\] of a webhook is none; allowed: whsec_/],
    [{ secrets: [secret(), 'whsec_c2hvcnQ='] }, /^secrets\[1\] of a webhook is none/],
  ])('%o', (options, message) => {
    const make = () => webhookSink({ url: 'https://example.com/hook', ...options });
    expect(make).toThrow(WebhookError);
    expect(make).toThrow(message);
    expect(make).not.toThrow(/hunter2|secret-path/);
  });
});

it('a run is untouched by one that is down, the reason is on its record, and it arrives when it is up', async () => {
  const db = await freshDatabase();
  try {
    let down = true;
    receiver.answer = (_, response) => response.writeHead(down ? 503 : 200).end();
    const logger = keepingLogger();
    const sinks = [webhookSink({ url: `${receiver.url}/secret-path`, name: 'ops', allowPrivate: true })];
    const coordinator = coordinatorOn(db.url, { sinks, logger });
    const job = (name: string) => defineJob({ name, work: async () => 1 });
    const run = await coordinate(deliveryFor(job('one'), '2026-11-29T12:00:00Z'), 60_000, coordinator);
    expect(run.status).toBe('succeeded');
    const look = async () => {
      const session = await Session.open(targetOf(db.url));
      return findRun(session, run.id).finally(async () => session.close());
    };
    await expect
      .poll(async () => (await look())?.publishError)
      .toMatchObject({
        tries: 1,
        givenUp: false,
        failures: [{ sink: 'ops', code: 'HTTP 503' }],
      });
    expect(JSON.stringify(logger.lines)).not.toContain('secret-path');
    down = false;
    await db.query(`UPDATE cronce.run SET publish_after = clock_timestamp() - interval '1 s'`);
    await coordinate(deliveryFor(job('two'), '2026-11-29T12:00:00Z'), 60_000, coordinator);
    await expect.poll(async () => (await look())?.publishedAt).not.toBeNull();
    expect(receiver.received.map(({ headers }) => headers['webhook-id'])).toEqual(
      expect.arrayContaining([run.id, run.id]),
    );
  } finally {
    await db.drop();
  }
});
