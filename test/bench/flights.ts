/**
 * Round trips that an invocation waits for, from connecting to having closed, counted on the wire (see turns.ts). Over 5 ms
 * each way, so that an answer never comes in the turn in which it was asked for.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Sink } from '../../src/sinks/sink.ts';
import { bareRun, bareSkip, bareTransaction, holdBare } from './bare.ts';
import type { Stand } from './stand.ts';
import { deliver, empty, failing, held, hold, neonWay, pgWay, type Way } from './ways.ts';

export interface Flights {
  readonly way: string;
  readonly what: string;
  readonly roundTrips: number;
}

const latencyMs = 5;
/** What comes after the last words of a connection is over by then, ms. */
const quietMs = 150;
/** The most of several times counts: on a slow machine an answer may come after we have stopped waiting for it. */
const times = 3;

const sink: Sink = {
  name: 'bench',
  send: async (runs) => Promise.resolve(new Set(runs.map(({ id }) => id))),
};

export async function flights(stand: Stand): Promise<Flights[]> {
  const ways: [string, () => Promise<Way>][] = [
    ['pg, cleartext password', async () => pgWay(stand, stand.url('bench'), latencyMs)],
    ['pg, SCRAM', async () => pgWay(stand, stand.url('bench_scram'), latencyMs)],
    [
      'pg, TLS and SCRAM',
      async () => pgWay(stand, stand.url('bench_scram', '?sslmode=no-verify'), latencyMs),
    ],
    ['neon by a relay, cleartext password', async () => neonWay(stand, stand.url('bench'), latencyMs)],
  ];
  const letGo = [await hold(stand.url('bench')), await holdBareAt(stand)];
  const found: Flights[] = [];
  for (const [name, open] of ways) {
    const way = await open();
    for (const [what, act] of acts(way)) found.push({ way: name, what, roundTrips: await countOf(way, act) });
    await way.close();
  }
  for (const end of letGo) await end();
  return found;
}

async function holdBareAt(stand: Stand): Promise<() => Promise<void>> {
  const way = await pgWay(stand, stand.url('bench'), 0);
  const letGo = await holdBare(way.connect);
  return async () => letGo().finally(async () => way.close());
}

function acts(way: Way): [string, () => Promise<void>][] {
  return [
    ['bare recipe', async () => bareRun(way.connect)],
    ['bare recipe by a transaction’s lock', async () => bareTransaction(way.connect)],
    ['bare skip', async () => bareSkip(way.connect)],
    ['run', async () => deliver(empty, way, 'succeeded')],
    ['skip', async () => deliver(held, way, 'skipped')],
    ['failed run', async () => deliver(failing, way, 'failed')],
    ['run, one sink', async () => deliver(empty, way, 'succeeded', { sinks: [sink] })],
    ['skip, one sink', async () => deliver(held, way, 'skipped', { sinks: [sink] })],
    ['failed run, one sink', async () => deliver(failing, way, 'failed', { sinks: [sink] })],
  ];
}

async function countOf({ lag }: Way, act: () => Promise<void>): Promise<number> {
  const counts: number[] = [];
  for (let time = 0; time < times; time++) {
    const before = await lag.roundTrips();
    await act();
    counts.push((await lag.roundTrips()) - before);
    await sleep(quietMs);
  }
  return Math.max(...counts);
}
