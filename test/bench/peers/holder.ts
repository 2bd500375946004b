/**
 * A process that has begun a slot's work and stays inside, for faults that only a process can suffer. Takes its orders as
 * JSON in its first argument, says by a message which job’s work begins, each time, and ends with its parent.
 */
import { all } from './all.ts';
import type { Addresses } from './peer.ts';

export interface HolderOrders {
  readonly peer: string;
  readonly addresses: Addresses;
  readonly job: string;
  readonly slot: string;
  /** Whether it delivers, or only takes up what another has left. */
  readonly delivers: boolean;
}

const { peer: name, addresses, job, slot, delivers } = JSON.parse(process.argv[2] ?? '') as HolderOrders;
const peer = all.find((one) => one.name === name);
if (peer === undefined) throw new Error(`no peer ${name}`);
process.on('disconnect', () => process.exit());
const started = await peer.start(addresses, [job], async (begun) => {
  process.send?.(begun);
  await new Promise<never>(() => undefined);
});
// Cut off, it may be told so in the end; it stays, as it would.
if (delivers) await started.deliver(job, slot).catch(() => undefined);
