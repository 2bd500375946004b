/**
 * A network of a given length between a client and a server: each byte arrives `ms` later, to a fraction of a
 * millisecond, and so does the news that a connection stands. In a process of its own, so that its waiting takes no turns
 * of the code that is measured.
 */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { fileURLToPath } from 'node:url';
import { turnsOf } from './turns.ts';

interface Span {
  readonly target: number;
  /** One way. */
  readonly ms: number;
}

export interface Lag {
  readonly port: number;
  /** Round trips so far, of all connections together: see turns.ts. */
  roundTrips(): Promise<number>;
  stop(): Promise<void>;
}

const file = fileURLToPath(import.meta.url);

export async function startLag({ target, ms }: Span): Promise<Lag> {
  const child = fork(file, [String(target), String(ms)], { execArgv: ['--import', 'tsx'] });
  const [port] = (await once(child, 'message')) as [number];
  return {
    port,
    async roundTrips() {
      child.send('count');
      const [count] = (await once(child, 'message')) as [number];
      return count;
    },
    async stop() {
      child.kill();
      await once(child, 'exit');
    },
  };
}

/** A URL by way of a lag. */
export function through(url: string, { port }: Lag): string {
  const changed = new URL(url);
  changed.port = String(port);
  return changed.href;
}

/** One direction. Timers are good to a millisecond, and late rather than early: the last of them is waited out by turns. */
class Lane {
  #readyAt = 0;
  readonly #ms: number;
  readonly #deliver: (chunk: Buffer | 'end') => void;
  readonly #queue: { readonly chunk: Buffer | 'end'; readonly at: number }[] = [];

  /** @param laterMs how much later the very first may leave */
  constructor(ms: number, laterMs: number, deliver: (chunk: Buffer | 'end') => void) {
    this.#ms = ms;
    this.#readyAt = performance.now() + laterMs;
    this.#deliver = deliver;
  }

  push(chunk: Buffer | 'end'): void {
    this.#queue.push({ chunk, at: Math.max(performance.now(), this.#readyAt) + this.#ms });
    if (this.#queue.length === 1) this.#wait();
  }

  #wait(): void {
    const next = this.#queue[0];
    if (next === undefined) return;
    const leftMs = next.at - performance.now();
    if (leftMs > 2) setTimeout(() => this.#wait(), leftMs - 1.5);
    else if (leftMs > 0) setImmediate(() => this.#wait());
    else this.#arrive();
  }

  #arrive(): void {
    const next = this.#queue.shift();
    if (next !== undefined) this.#deliver(next.chunk);
    this.#wait();
  }
}

const turns = turnsOf();

function accept(client: Socket, { target, ms }: Span): void {
  const server = connect({ port: target, host: '127.0.0.1', noDelay: true, allowHalfOpen: true });
  const count = turns.connection();
  // The kernel has shaken hands at once; over such a network the first bytes would leave a round trip later.
  const up = new Lane(ms, 2 * ms, (chunk) => (chunk === 'end' ? server.end() : server.write(chunk)));
  const down = new Lane(ms, 0, (chunk) => {
    count.heard();
    if (chunk === 'end') client.end();
    else client.write(chunk);
  });
  client.on('data', (chunk: Buffer) => {
    count.spoke();
    up.push(chunk);
  });
  client.on('end', () => up.push('end'));
  server.on('data', (chunk: Buffer) => down.push(chunk)).on('end', () => down.push('end'));
  client.on('error', () => server.destroy());
  server.on('error', () => client.destroy());
}

async function serve(span: Span): Promise<void> {
  const listener = createServer({ noDelay: true, allowHalfOpen: true }, (client) => accept(client, span));
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  process.on('message', () => process.send?.(turns.total()));
  process.on('disconnect', () => process.exit());
  process.send?.((listener.address() as AddressInfo).port);
}

if (process.argv[1] === file) await serve({ target: Number(process.argv[2]), ms: Number(process.argv[3]) });
