/**
 * How often a slot's work runs, if it is delivered again 0 to 120 s after the first run of it has finished, which Lambda's
 * retries, EventBridge's and a clock that is off all do. The work takes no time. All peers at once: they wait.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { lateAtS, type Late, type Lates, type Orders } from '../peers.ts';
import { all } from './all.ts';
import { peeredOf, present, startAll, within, type Standing } from './field.ts';

const job = 'late';
const slot = '2026-12-01T00:00:00Z';

export async function late(orders: Orders): Promise<Lates> {
  const peers = all.filter(({ name }) => name !== 'Cronce, lockDelayMs 0');
  const measured = present(orders).filter((peer) => peers.includes(peer));
  const standing = await startAll(orders, orders.ports[0], measured, [job], () => async () => undefined);
  const found = await Promise.all(standing.map(again));
  for (const { started } of standing) await started.stop();
  return { peers: peeredOf(orders, peers), found };
}

async function again({ peer, started }: Standing): Promise<Late> {
  const deliver = async () => within(20_000, `a delivery at ${peer.name}`, started.deliver(job, slot));
  if (!(await deliver())) throw new Error(`${peer.name} turned a new slot away`);
  const since = performance.now();
  const ranAgainAtS: number[] = [];
  for (const atS of lateAtS) {
    await delay(Math.max(0, since + atS * 1_000 - performance.now()));
    if (await deliver()) ranAgainAtS.push(atS);
  }
  return { peer: peer.name, ranAgainAtS };
}
