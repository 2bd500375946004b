/** What `npm run bench` measures with: a ruler that is bent would bend each figure. */
import { once } from 'node:events';
import { connect, createServer, type AddressInfo } from 'node:net';
import { expect, it } from 'vitest';
import { startLag } from './bench/lag.ts';
import { interleave, ratio, spreadOf } from './bench/pairs.ts';
import { plot } from './bench/plot.ts';
import { figuresOf } from './bench/tables.ts';
import { turnsOf } from './bench/turns.ts';

it('charges each round trip over its network in full, TCP’s own too, and counts it', async () => {
  const echo = createServer((socket) => socket.pipe(socket));
  echo.listen(0, '127.0.0.1');
  await once(echo, 'listening');
  const lag = await startLag({ target: (echo.address() as AddressInfo).port, ms: 7.5 });
  const startedAt = performance.now();
  const client = connect({ port: lag.port, host: '127.0.0.1', noDelay: true });
  const took: number[] = [];
  for (const words of ['one', 'other']) {
    client.write(words);
    const [heard] = (await once(client, 'data')) as [Buffer];
    expect(heard.toString()).toBe(words);
    took.push(performance.now() - startedAt);
  }
  expect(await lag.roundTrips()).toBe(3);
  expect(took[0]).toBeGreaterThanOrEqual(30);
  expect(took[1]).toBeGreaterThanOrEqual(45);
  client.destroy();
  await lag.stop();
  echo.close();
});

it('counts a turn where the client hears after it has spoken, however much comes', () => {
  const turns = turnsOf();
  const [one, other] = [turns.connection(), turns.connection()];
  one.heard(); // nobody has asked
  one.spoke();
  one.spoke();
  one.heard();
  one.heard();
  other.spoke(); // and doesn't wait
  expect(turns.total()).toBe(3);
});

it('does each thing once a round, in turns, and forgets the first rounds', async () => {
  const done: string[] = [];
  const thing = (name: string) => async () => Promise.resolve(done.push(name));
  const times = await interleave({ a: thing('a'), b: thing('b') }, 3, async (act) => Number(await act()));
  expect(done.join('')).toBe('abbaabba');
  expect(times).toEqual({ a: [4, 5, 8], b: [3, 6, 7] });
});

it('takes the median and the quartiles of the pairs’ own ratios', () => {
  expect(ratio([2, 30, 9, 4, 10], [1, 10, 9, 8, 2])).toEqual({ median: 2, quartiles: [1, 3] });
  expect(spreadOf([1, 2])).toEqual({ median: 1.5, quartiles: [1.25, 1.75] });
});

const even = { median: 1.2, quartiles: [1.1, 1.3] } as const;
const found = [
  { driver: 'pg', latencyMs: 5, what: 'run ÷ bare recipe', ratio: even, oursMs: even, theirsMs: even },
] as const;

it('says where the bare recipe wins, and what was not measured', () => {
  const versions = { node: '1', postgres: '2', pg: '3', '@neondatabase/serverless': '4' };
  const under = { date: '2026-12-01', pairs: 40, cores: 2, memoryGb: 4, load: 0, versions };
  const rows = figuresOf({ invocation: { under, found } }).split('\n');
  expect(rows).toContain(
    '| run ÷ bare recipe, pg, 5 ms each way | ≤ 0.9 | 1.20 (1.10–1.30) | not reached; the bare recipe wins |',
  );
  expect(rows).toContain('| run ÷ bare recipe, pg, 10 ms each way | ≤ 0.85 | not measured |  |');
});

it('draws what was measured and nothing else', () => {
  expect(plot(found).match(/<polyline/g)).toHaveLength(1);
  expect(plot([])).not.toMatch(/NaN|undefined/);
});
