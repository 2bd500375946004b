/** What `npm run bench` measures with: a ruler that is bent would bend each figure. */
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { connect, createServer, type AddressInfo } from 'node:net';
import { expect, it } from 'vitest';
import { startLag } from './lag.ts';
import type { Results } from './kept.ts';
import { interleave, ratio, spreadOf } from './pairs.ts';
import { peerPlot } from './peer-plot.ts';
import { peerTables, summaryOf } from './peer-tables.ts';
import { peerNames, type Price } from './peers.ts';
import { plot } from './plot.ts';
import { figuresOf, tablesOf } from './tables.ts';
import { turnsOf } from './turns.ts';

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

const docs = async (file: string) => readFile(new URL(`../../docs/${file}`, import.meta.url), 'utf8');

it('keeps tables that are those of its results, and a figure or a reason for each peer', async () => {
  const results = JSON.parse(await docs('bench/results.json')) as Results;
  expect(await docs('bench/results.md')).toBe(tablesOf(results));
  expect(await docs('bench.md')).toContain(summaryOf(results));
  const { peers, recovery, late, storm, long } = results;
  for (const part of [peers, recovery, late, storm, long]) {
    const { peers: measured = [], found: figures = [] } = part?.found ?? {};
    expect(measured.length).toBeGreaterThan(2);
    for (const { name, absent } of measured) {
      expect(peerNames).toContain(name);
      expect(figures.some(({ peer }) => peer === name)).toBe(absent === undefined);
    }
  }
});

const circumstances = {
  date: '2026-12-01',
  pairs: 4,
  cores: 2,
  memoryGb: 4,
  load: 0,
  versions: { node: '24' },
};
const peered = (name: (typeof peerNames)[number], absent?: string) =>
  ({ name, on: 'Redis', resident: false, setUp: 'so', ...(absent === undefined ? {} : { absent }) }) as const;
const price = (what: 'run' | 'skip', toBare: number, toOurs: number): Price => {
  const spread = (median: number) => ({ median, quartiles: [median, median] }) as const;
  return {
    peer: 'pg-boss',
    latencyMs: 5,
    what,
    toBare: spread(toBare),
    toOurs: spread(toOurs),
    ms: spread(1),
  };
};
const prices = {
  peers: [peered('pg-boss'), peered('redlock', 'no redis-server')],
  found: [price('run', 0.5, 0.6), price('skip', 1.5, 1.7)],
};

it('says where a peer wins over us, and why one was not measured', () => {
  const rows = peerTables({ peers: { under: circumstances, found: prices } }).split('\n');
  expect(rows).toContain('| pg-boss | 0.50 (0.50–0.50) | 1.50 (1.50–1.50) | run at 5 ms (0.60) |');
  expect(rows).toContain('| redlock | not measured: no redis-server |  |  |');
});

it('draws the peers that were measured', () => {
  expect(peerPlot(prices, 5)).toContain('>pg-boss<');
  expect(peerPlot(prices, 5)).not.toMatch(/redlock|NaN|undefined/);
});
