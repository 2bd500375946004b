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
  const begun = new Begun();
  const victims: Victim[] = [];
  const rivals: Standing[] = [];
  const recovering: Promise<Recovery>[] = [];
  // One peer's processes after the other's, as they are many for few cores; all go on waiting together.
  for (const peer of present(orders)) {
    const [rival, mine] = await field(orders, peer, begun);
    victims.push(...mine);
    if (rival) rivals.push(rival);
    recovering.push(...mine.map(async (victim) => recover(orders, victim, rival, begun)));
  }
  const found = await Promise.all(recovering);
  for (const { child, cable } of victims) {
    child.kill('SIGKILL');
    cable.remove();
  }
  for (const { started } of rivals) await within(5_000, 'stopping', started.stop()).catch(() => undefined);
  return { peers: peeredOf(orders, all), patienceS: patienceMs / 1_000, found };
}

/** Who will come again, and who will have begun: an instant before the faults, as some count from the beginning. */
async function field(
  orders: Orders,
  peer: Peer,
  begun: Begun,
): Promise<readonly [Standing | undefined, readonly Victim[]]> {
  const begin = async () => {
    const [first, ...others] = faults;
    const made = await startVictim(orders, peer, first); // it makes the tables
    return [made, ...(await Promise.all(others.map(async (fault) => startVictim(orders, peer, fault))))];
  };
  if (peer.takenOverBy === 'its restart') return [undefined, await begin()];
  if (peer.takenOverBy === 'a delivery') {
    const rival = await startRival(orders, peer, begun);
    return [rival, await Promise.all(faults.map(async (fault) => startVictim(orders, peer, fault)))];
  }
  // Where a process takes what it finds, another one would have it.
  const victims = await begin();
  return [await startRival(orders, peer, begun), victims];
}

/** When work of which job began, of ours that came after the faults. */
class Begun {
  readonly #at = new Map<string, number>();

  // As a job's function, it answers a promise.
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
  rival: Standing | undefined,
  begun: Begun,
): Promise<Recovery> {
  const { peer, fault, job, child, cable } = victim;
  const since = performance.now();
  if (fault === 'cable cut') cable.cut();
  else child.kill(fault);
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

/** Whichever process of them then begins it. */
async function restart(orders: Orders, { peer, job }: Victim, begun: Begun): Promise<void> {
  const addresses = addressesOf(peer, orders, orders.ports[0]);
  const child = startHolder({ peer: peer.name, addresses, job, slot, delivers: false });
  child.on('message', (which: string) => void begun.note(which));
  const end = performance.now() + patienceMs;
  while (begun.at(job) === undefined && performance.now() < end) await delay(50);
}
