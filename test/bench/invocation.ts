/** A whole invocation beside the bare recipe, over networks of several lengths. */
import { eventBridgeSink } from '../../src/sinks/eventbridge.ts';
import { reply, startAwsEndpoint } from '../support/aws.ts';
import { bareRun, bareSkip, bareTransaction, holdBare } from './bare.ts';
import { interleave, ratio, spreadOf, type Spread } from './pairs.ts';
import type { Stand } from './stand.ts';
import { deliver, empty, held, hold, neonWay, pgWay, type Way } from './ways.ts';

export interface Comparison {
  readonly driver: 'pg' | 'neon';
  /** One way. */
  readonly latencyMs: number;
  readonly what: string;
  readonly ratio: Spread;
  readonly oursMs: Spread;
  readonly theirsMs: Spread;
}

const lengths = { pg: [0, 2.5, 5, 10], neon: [0, 5] } as const;

export async function invocation(stand: Stand, pairs: number): Promise<Comparison[]> {
  const found: Comparison[] = [];
  for (const driver of ['pg', 'neon'] as const)
    for (const latencyMs of lengths[driver]) {
      const way = await (driver === 'pg' ? pgWay : neonWay)(stand, stand.url('bench'), latencyMs);
      found.push(...(await compare(stand, way, pairs)).map((one) => ({ driver, latencyMs, ...one })));
      await way.close();
    }
  const way = await pgWay(stand, stand.url('bench'), 5);
  found.push({ driver: 'pg', latencyMs: 5, ...(await withSink(way, pairs)) });
  await way.close();
  return found;
}

type Compared = Omit<Comparison, 'driver' | 'latencyMs'>;

async function compare(stand: Stand, way: Way, pairs: number): Promise<Compared[]> {
  const letGo = [await hold(stand.url('bench')), await holdBare((await plain(stand)).connect)];
  const times = await interleave(
    {
      run: async () => deliver(empty, way, 'succeeded'),
      bareRun: async () => bareRun(way.connect),
      bareTransaction: async () => bareTransaction(way.connect),
      skip: async () => deliver(held, way, 'skipped'),
      bareSkip: async () => bareSkip(way.connect),
    },
    pairs,
  );
  for (const end of letGo) await end();
  return [
    compared('run ÷ bare recipe', times.run, times.bareRun),
    compared('run ÷ bare recipe by a transaction’s lock', times.run, times.bareTransaction),
    compared('skip ÷ bare skip', times.skip, times.bareSkip),
  ];
}

async function plain(stand: Stand): Promise<Pick<Way, 'connect'>> {
  const { default: pg } = await import('pg');
  return { connect: () => new pg.Client({ connectionString: stand.url('bench') }) };
}

/** The bus is on this machine: what is measured is what telling it costs us, and not how far away it is. */
async function withSink(way: Way, pairs: number): Promise<Compared> {
  process.env['AWS_REGION'] ??= 'us-east-1';
  process.env['AWS_ACCESS_KEY_ID'] ??= 'local';
  process.env['AWS_SECRET_ACCESS_KEY'] ??= 'local';
  const bus = await startAwsEndpoint(({ body }, response) => {
    const { Entries } = body as { Entries: unknown[] };
    reply(response, 200, {
      FailedEntryCount: 0,
      Entries: Entries.map((_, n) => ({ EventId: `event-${n}` })),
    });
  });
  const sinks = [eventBridgeSink({ bus: 'bench', endpoint: bus.url })];
  const times = await interleave(
    {
      told: async () => deliver(empty, way, 'succeeded', { sinks }),
      logged: async () => deliver(empty, way, 'succeeded'),
    },
    pairs,
  );
  await bus.stop();
  return compared('run with one sink ÷ run with the log alone', times.told, times.logged);
}

function compared(what: string, ours: readonly number[], theirs: readonly number[]): Compared {
  return { what, ratio: ratio(ours, theirs), oursMs: spreadOf(ours), theirsMs: spreadOf(theirs) };
}
