import { expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { refusalOf } from '../../../infra/local/guard.ts';
import { startRelay } from '../../../infra/local/relay.ts';

const statusOf = (headers: Record<string, string>, localAddress?: string) =>
  refusalOf({ headers, socket: { localAddress } })?.status ?? 200;

it.each([
  ['localhost', 200],
  ['localhost:3000', 200],
  ['LOCALHOST.:3000', 200],
  ['app.localhost:3000', 200],
  ['127.0.0.1:3000', 200],
  ['127.8.8.8', 200],
  ['[::1]:3000', 200],
  ['', 421],
  ['evil.example', 421],
  ['localhost.evil.example', 421],
  ['127.0.0.1.evil.example', 421],
  ['notlocalhost', 421],
  ['192.168.1.5:3000', 421],
  ['0.0.0.0', 421],
  ['[::2]', 421],
  ['user@localhost', 421],
  ['a b', 421],
])('I4: the host %j is answered by %i', (host, status) => {
  expect(statusOf({ host })).toBe(status);
});

it('I4: serves the address that it was reached at, where it listens on more', () => {
  expect(statusOf({ host: '192.168.1.5:3000' }, '::ffff:192.168.1.5')).toBe(200);
  expect(statusOf({ host: '192.168.1.5:3000' }, '192.168.1.6')).toBe(421);
  expect(statusOf({ host: '[fe80::1]:3000' }, 'fe80::1')).toBe(200);
});

it.each([
  ['http://localhost:3000', 200],
  ['http://localhost:3001', 403],
  ['https://localhost:3000', 403],
  ['http://127.0.0.1:3000', 403],
  ['http://evil.example', 403],
  ['null', 403],
  ['', 403],
])('I4: a page of %j is answered by %i', (origin, status) => {
  expect(statusOf({ host: 'localhost:3000', origin })).toBe(status);
});

it('I4: no page reaches the database through the relay', async () => {
  const relay = await startRelay({ allow: ['127.0.0.1:9'] });
  const opened = new WebSocket(`ws://${relay.wsProxy}127.0.0.1:9`, { origin: 'http://evil.example' });
  const status = await new Promise((resolve) => {
    opened.on('unexpected-response', (_, { statusCode }) => resolve(statusCode));
    opened.on('open', () => resolve('open'));
    opened.on('error', (error) => resolve(error.message));
  });
  await relay.stop();
  expect(status).toBe(403);
});
