/**
 * What a run costs, and what turning a delivery away does while the slot's work goes on: a peer's ÷ the bare recipe's, and
 * ÷ ours. Each round does each thing once, in an order that turns.
 */
import { interleave, ratio, spreadOf } from '../pairs.ts';
import type { Orders, Ports, Price, Prices } from '../peers.ts';
import { all } from './all.ts';
import { peeredOf, present, startAll, within, type Standing } from './field.ts';

const [quick, busy] = ['price', 'price-busy'] as const;
const limitMs = 30_000;

export async function prices(orders: Orders): Promise<Prices> {
  // Without a lock delay it does the very same.
  const peers = all.filter(({ name }) => name !== 'Cronce, lockDelayMs 0');
  const measured = present(orders).filter((peer) => peers.includes(peer));
  const found: Price[] = [];
  for (const ports of orders.ports.slice(1)) {
    const gates = new Gates();
    const standing = await startAll(
      orders,
      ports,
      measured,
      [quick, busy],
      ({ name }) =>
        async (job, slot) => {
          if (job === busy) await gates.pass(`${name} ${slot}`);
        },
    );
    found.push(...(await over(standing, gates, ports, orders.pairs)));
    for (const { started } of standing) await started.stop();
  }
  return { peers: peeredOf(orders, peers), found };
}

async function over(
  standing: readonly Standing[],
  gates: Gates,
  { latencyMs }: Ports,
  pairs: number,
): Promise<Price[]> {
  const things = Object.fromEntries(
    standing.flatMap((one) => [
      [`run ${one.peer.name}`, async () => runOf(one)],
      [`skip ${one.peer.name}`, async () => skipOf(one, gates)],
    ]),
  );
  const times = await interleave(things, pairs, async (thing) => (await thing()) as number);
  const of = (what: string, name: string) => times[`${what} ${name}`] ?? [];
  return standing.flatMap(({ peer: { name } }) =>
    (['run', 'skip'] as const).map((what) => ({
      peer: name,
      latencyMs,
      what,
      toBare: ratio(of(what, name), of(what, 'bare recipe')),
      toOurs: ratio(of(what, name), of(what, 'Cronce')),
      ms: spreadOf(of(what, name)),
    })),
  );
}

let slots = 0;

function nextSlot(): string {
  slots += 1;
  return `${process.pid}-${slots}`;
}

async function runOf({ peer, started }: Standing): Promise<number> {
  const slot = nextSlot();
  const since = performance.now();
  const ran = await within(limitMs, `a run of ${peer.name}`, started.deliver(quick, slot));
  const ms = performance.now() - since;
  if (!ran) throw new Error(`${peer.name} turned a new slot away`);
  return ms;
}

/** A second delivery of a slot whose work goes on. */
async function skipOf({ peer, started }: Standing, gates: Gates): Promise<number> {
  const slot = nextSlot();
  const gate = gates.close(`${peer.name} ${slot}`);
  const first = started.deliver(busy, slot);
  await within(limitMs, `the beginning of work at ${peer.name}`, Promise.race([gate.reached, first]));
  const since = performance.now();
  const ran = await within(limitMs, `a skip of ${peer.name}`, started.deliver(busy, slot));
  const ms = performance.now() - since;
  if (ran) throw new Error(`${peer.name} let a second one in`);
  gate.open();
  await within(limitMs, `the end of work at ${peer.name}`, first);
  return ms;
}

/** Work that is held up until it is let go, and says when it has come so far. */
class Gates {
  readonly #closed = new Map<string, { readonly reach: () => void; readonly opened: Promise<void> }>();

  close(name: string): { readonly reached: Promise<void>; readonly open: () => void } {
    let reach: () => void = () => undefined;
    let open: () => void = () => undefined;
    const reached = new Promise<void>((resolve) => (reach = resolve));
    const opened = new Promise<void>((resolve) => (open = resolve));
    this.#closed.set(name, { reach, opened });
    return { reached, open };
  }

  async pass(name: string): Promise<void> {
    const gate = this.#closed.get(name);
    gate?.reach();
    await gate?.opened;
    this.#closed.delete(name);
  }
}
