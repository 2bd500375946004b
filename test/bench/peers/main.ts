/** The process that measures among the peers: takes its orders from ../peers.ts by a message, and answers with one. */
import type { Orders, PeerParts } from '../peers.ts';
import { late } from './late.ts';
import { long } from './long.ts';
import { prices } from './prices.ts';
import { recovery } from './recovery.ts';
import { storm } from './storm.ts';

type Told = PeerParts[keyof PeerParts];

async function measure(orders: Orders): Promise<Told> {
  switch (orders.part) {
    case 'peers':
      return prices(orders);
    case 'recovery':
      return recovery(orders);
    case 'late':
      return late(orders);
    case 'storm':
      return storm(orders);
    case 'long':
      return long(orders);
  }
}

const orders = await new Promise<Orders>((resolve) => void process.once('message', resolve));
const found = await measure(orders);
process.send?.({ found });
