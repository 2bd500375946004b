/**
 * How long a slot stays undone when the process that does it is killed, frozen or cut off: seconds from the fault until its
 * work begins again, somewhere else, by deliveries of the same slot each quarter of a second. They are time limits, so they
 * are told as what they are and not as ratios. All peers at once: they wait.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { faults, type Fault, type Orders, type Recoveries, type Recovery } from '../peers.ts';
import { all } from './all.ts';
import { layCable, type Cable } from './cable.ts';
import { addressesOf, peeredOf, present, within, type Standing } from './field.ts';
import type { HolderOrders } from './holder.ts';
import type { Peer } from './peer.ts';

const patienceMs = 75_000;
const everyMs = 250;

/** A holder of one peer's, to which one thing will happen. */
interface Victim {
  readonly peer: Peer;
  readonly fault: Fault;
  readonly job: string;
  readonly child: ChildProcess;
  readonly cable: Cable;
}

const slot = '2026-12-01T00:00:00Z';

export async function recovery(orders: Orders): Promise<Recoveries> {
  const measured = present(orders);
  const victims: Victim[] = [];
  // One of each peer's at a time: the first makes its tables.
  for (const fault of faults)
    victims.push(...(await Promise.all(measured.map(async (peer) => startVictim(orders, peer, fault)))));
  const begun = new Begun();
  const rivals = new Map<Peer, Standing>();
  for (const peer of measured)
    if (peer.takenOverBy !== 'its restart') rivals.set(peer, await startRival(orders, peer, begun));
  const found = await Promise.all(victims.map(async (victim) => recover(orders, victim, rivals, begun)));
  for (const { child, cable } of victims) {
    child.kill('SIGKILL');
    cable.remove();
  }
  for (const { started } of rivals.values())
    await within(5_000, 'stopping', started.stop()).catch(() => undefined);
  return { peers: peeredOf(orders, all), patienceS: patienceMs / 1_000, found };
}

/** When work of which job began, of ours that came after the faults. */
class Begun {
  readonly #at = new Map<string, number>();

  async note(job: string): Promise<void> {
    if (!this.#at.has(job)) this.#at.set(job, performance.now());
  }

  at(job: string): number | undefined {
    return this.#at.get(job);
  }
}

function jobOf({ name }: Peer, fault: Fault): string {
  return `${name}-${fault}`.toLowerCase().replace(/[^a-z0-9]+/g, '-');
}

async function startVictim(orders: Orders, peer: Peer, fault: Fault): Promise<Victim> {
  const straight = addressesOf(peer, orders, orders.ports[0]);
  const port = { PostgreSQL: Number(new URL(straight.postgres).port), Redis: straight.redisPort, DynamoDB: straight.dynamoPort }[peer.on]; // prettier-ignore
  const cable = await layCable(port);
  const job = jobOf(peer, fault);
  const addresses = addressesOf(peer, orders, { latencyMs: 0, postgres: cable.port, redis: cable.port, dynamo: cable.port }); // prettier-ignore
  const child = startHolder({ peer: peer.name, addresses, job, slot, delivers: true });
  await within(60_000, `the beginning at ${peer.name}`, once(child, 'message'));
  return { peer, fault, job, child, cable };
}

function startHolder(orders: HolderOrders): ChildProcess {
  const file = fileURLToPath(new URL('holder.ts', import.meta.url));
  return fork(file, [JSON.stringify(orders)], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
}

async function startRival(orders: Orders, peer: Peer, begun: Begun): Promise<Standing> {
  const jobs = faults.map((fault) => jobOf(peer, fault));
  const addresses = addressesOf(peer, orders, orders.ports[0]);
  return { peer, started: await peer.start(addresses, jobs, async (job) => begun.note(job)) };
}

async function recover(
  orders: Orders,
  victim: Victim,
  rivals: ReadonlyMap<Peer, Standing>,
  begun: Begun,
): Promise<Recovery> {
  const { peer, fault, job, child, cable } = victim;
  const since = performance.now();
  if (fault === 'cable cut') cable.cut();
  else child.kill(fault);
  const rival = rivals.get(peer);
  const again = rival ? deliverUntil(rival, job, begun) : restart(orders, victim, begun);
  await Promise.race([again, delay(patienceMs)]);
  const at = begun.at(job);
  return { peer: peer.name, fault, seconds: at === undefined ? null : Math.round((at - since) / 10) / 100 };
}

/** Each delivery to its end: one that is let in waits in there. */
async function deliverUntil({ started }: Standing, job: string, begun: Begun): Promise<void> {
  const end = performance.now() + patienceMs;
  while (begun.at(job) === undefined && performance.now() < end) {
    await started.deliver(job, slot).catch(() => false); // thrown at its caller, who comes again
    await delay(everyMs);
  }
}

async function restart(orders: Orders, { peer, job }: Victim, begun: Begun): Promise<void> {
  const addresses = addressesOf(peer, orders, orders.ports[0]);
  const child = startHolder({ peer: peer.name, addresses, job, slot, delivers: false });
  await Promise.race([once(child, 'message').then(async () => begun.note(job)), delay(patienceMs)]);
  child.kill('SIGKILL');
}
