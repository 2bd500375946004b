/**
 * A process that has begun a slot's work and stays inside, for faults that only a process can suffer. Takes its orders as
 * JSON in its first argument, says `inside` by a message each time that work begins, and ends with its parent.
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
const started = await peer.start(addresses, [job], async () => {
  process.send?.('inside');
  await new Promise<never>(() => undefined);
});
if (delivers) await started.deliver(job, slot);
