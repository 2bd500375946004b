/**
 * One of the processes of a storm: takes its orders by a message, and answers with what became of its deliveries. `ready`
 * before it begins, so that all begin at once.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { all } from './all.ts';
import type { Addresses, Started } from './peer.ts';

export interface MemberOrders {
  readonly peer: string;
  readonly addresses: Addresses;
  readonly jobs: readonly string[];
  readonly deliveries: readonly { readonly job: string; readonly slot: string; readonly atMs: number }[];
}

export interface Told {
  readonly works: number;
  readonly thrown: Readonly<Record<string, number>>;
  /** Of each delivery, from its beginning to its end. */
  readonly ms: readonly number[];
  /** Until the last was over. */
  readonly wholeMs: number;
}

const orders = await new Promise<MemberOrders>((resolve) => void process.once('message', resolve));
const peer = all.find(({ name }) => name === orders.peer);
if (peer === undefined) throw new Error(`no peer ${orders.peer}`);
process.on('disconnect', () => process.exit());

let works = 0;
const thrown: Record<string, number> = {};
const ms: number[] = [];

async function deliver(
  started: Started,
  { job, slot, atMs }: MemberOrders['deliveries'][number],
): Promise<void> {
  if (atMs > 0) await delay(atMs);
  const since = performance.now();
  try {
    await started.deliver(job, slot);
  } catch (error) {
    const words = (error instanceof Error ? error.message : String(error)).split('\n')[0] ?? '';
    thrown[words] = (thrown[words] ?? 0) + 1;
  }
  ms.push(performance.now() - since);
}

const started = await peer.start(orders.addresses, orders.jobs, async () => {
  works += 1;
});
process.send?.('ready');
await new Promise((resolve) => void process.once('message', resolve));
const since = performance.now();
await Promise.all(orders.deliveries.map(async (one) => deliver(started, one)));
const told: Told = { works, thrown, ms, wholeMs: performance.now() - since };
process.send?.(told);
