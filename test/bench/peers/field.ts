/** The peers that can be measured, each with its own addresses. */
import type { Orders, Peered, Ports } from '../peers.ts';
import { all } from './all.ts';
import type { Addresses, Peer, Started, Work } from './peer.ts';

export function present({ absent }: Orders): readonly Peer[] {
  return all.filter(({ on }) => absent[on] === undefined);
}

export function peeredOf({ absent }: Orders, peers: readonly Peer[]): Peered[] {
  return peers.map(({ name, on, resident, setUp }) => {
    const why = absent[on];
    return { name, on, resident, setUp, ...(why === undefined ? {} : { absent: why }) };
  });
}

export function addressesOf({ name }: Peer, { databases }: Orders, ports: Ports): Addresses {
  const url = new URL(databases[name] ?? '');
  url.port = String(ports.postgres);
  return { postgres: url.href, redisPort: ports.redis, dynamoPort: ports.dynamo };
}

export interface Standing {
  readonly peer: Peer;
  readonly started: Started;
}

/** One after the other: each first makes its tables. */
export async function startAll(
  orders: Orders,
  ports: Ports,
  peers: readonly Peer[],
  jobs: readonly string[],
  work: (peer: Peer) => Work,
): Promise<Standing[]> {
  const standing: Standing[] = [];
  for (const peer of peers)
    standing.push({ peer, started: await peer.start(addressesOf(peer, orders, ports), jobs, work(peer)) });
  return standing;
}

/** What hangs is a fault of the peer's or of ours; either way it is said. */
export async function within<T>(ms: number, what: string, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} took longer than ${ms} ms`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
