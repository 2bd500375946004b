/**
 * Far more at one moment than the server has connections (100): one slot, delivered 1,000 times at once, by one contestant
 * after the other, in rounds whose order turns; and 1,000 jobs due within a minute, by all of them in the same minute. Straight, and through PgBouncer in
 * transaction mode with a pool of 20. A delivery that throws is not made again here: Lambda would.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { spreadOf } from '../pairs.ts';
import type { Orders, PeerName, Storm, Storms } from '../peers.ts';
import { all } from './all.ts';
import { addressesOf, peeredOf, within } from './field.ts';
import type { MemberOrders, Told } from './member.ts';
import type { Addresses, Peer } from './peer.ts';

const count = 1_000;
const rounds = 3;
const minuteMs = 60_000;
const limitMs = 300_000;
/** A process has one thread, and a function a sandbox: several share what asks for CPU. A resident peer is one process. */
const processes = 4;

interface Contestant {
  readonly peer: Peer;
  readonly road: Storm['road'];
  readonly addresses: Addresses;
}

const straight: readonly PeerName[] = ['Cronce', 'bare recipe', 'pg-boss', 'graphile-worker'];
/** A session's lock would leak there, and what listens needs a session. */
const pooled: readonly PeerName[] = ['Cronce', 'bare recipe by a transaction’s lock'];

export async function storm(orders: Orders): Promise<Storms> {
  const contestants = contestantsOf(orders);
  const peers = all.filter((peer) => contestants.some((one) => one.peer === peer));
  const slots = contestants.map((): Told[][] => []);
  for (let round = 0; round < rounds; round++)
    for (let turn = 0; turn < contestants.length; turn++) {
      const n = (turn + round) % contestants.length;
      const contestant = contestants[n];
      if (contestant) slots[n]?.push(await blow(contestant, oneSlotOf(round)));
    }
  const minute = await Promise.all(contestants.map(async (contestant) => [await blow(contestant, aMinute)]));
  const found = (what: Storm['what'], told: readonly Told[][][]) =>
    contestants.map((contestant, n) => summed(what, contestant, told[n] ?? []));
  return {
    peers: peeredOf(orders, peers),
    deliveries: count,
    found: [...found('one slot', slots), ...found('a minute', minute)],
  };
}

function contestantsOf(orders: Orders): Contestant[] {
  const peerOf = (name: PeerName) => {
    const peer = all.find((one) => one.name === name);
    if (peer === undefined) throw new Error(`no peer ${name}`);
    return peer;
  };
  const road = (name: PeerName, url?: string): Contestant => {
    const addresses = addressesOf(peerOf(name), orders, orders.ports[0]);
    if (url === undefined) return { peer: peerOf(name), road: 'straight', addresses };
    return { peer: peerOf(name), road: 'pooled', addresses: { ...addresses, postgres: url } };
  };
  const { pooledUrl } = orders;
  return [
    ...straight.map((name) => road(name)),
    ...(pooledUrl === undefined ? [] : pooled.map((name) => road(name, pooledUrl))),
  ];
}

type Plan = (contestant: Contestant) => MemberOrders['deliveries'];

function oneSlotOf(round: number): Plan {
  return ({ road }) =>
    Array.from({ length: count }, () => ({ job: 'storm', slot: `${road}-${process.pid}-${round}`, atMs: 0 }));
}

/** Of a queue for each job nothing would be learnt: where jobs are queues, they share one. */
function aMinute({ peer, road }: Contestant): MemberOrders['deliveries'] {
  return Array.from({ length: count }, (_, n) => ({
    job: peer.resident ? 'storm' : `storm-${road}-${n}`,
    slot: `${process.pid}-${n}`,
    atMs: 1 + (n * minuteMs) / count,
  }));
}

async function blow(contestant: Contestant, plan: Plan): Promise<Told[]> {
  const { peer, addresses } = contestant;
  const deliveries = plan(contestant);
  const shares = peer.resident ? 1 : processes;
  const members: ChildProcess[] = [];
  for (let share = 0; share < shares; share++) {
    const mine = deliveries.filter((_, n) => n % shares === share);
    const jobs = [...new Set(mine.map(({ job }) => job))];
    members.push(await startMember({ peer: peer.name, addresses, jobs, deliveries: mine }));
  }
  const told = members.map(async (member) => {
    member.send('go');
    const [answer] = (await once(member, 'message')) as [Told];
    member.kill('SIGKILL');
    return answer;
  });
  return within(limitMs, `a storm on ${peer.name}`, Promise.all(told));
}

async function startMember(orders: MemberOrders): Promise<ChildProcess> {
  const file = fileURLToPath(new URL('member.ts', import.meta.url));
  const child = fork(file, { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
  child.send(orders);
  await within(30_000, `starting ${orders.peer}`, once(child, 'message'));
  return child;
}

function summed(what: Storm['what'], { peer, road }: Contestant, told: readonly Told[][]): Storm {
  const thrown: Record<string, number> = {};
  for (const [words, times] of told.flat().flatMap((one) => Object.entries(one.thrown)))
    thrown[words] = (thrown[words] ?? 0) + times;
  return {
    peer: peer.name,
    road,
    what,
    thrown,
    rounds: told.map((members) => ({
      works: members.reduce((sum, { works }) => sum + works, 0),
      wholeMs: Math.round(Math.max(...members.map(({ wholeMs }) => wholeMs))),
      deliveryMs: spreadOf(members.flatMap(({ ms }) => ms)).median,
    })),
  };
}
