/** Worker processes and the deliveries they carry out, as the campaign sees them. */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import type { RunRecord } from '../../src/run.ts';
import type { Order, Vouched, WorkerEvent } from './orders.ts';

/** Longer than anything here takes; what is not there by then will not come. */
const patienceMs = 30_000;

/** Bundled once: a worker then starts in a tenth of the time, and there are hundreds. */
export async function bundleWorker(folder: string): Promise<string> {
  const outfile = path.join(folder, 'worker.mjs');
  await build({
    entryPoints: [fileURLToPath(new URL('worker.ts', import.meta.url))],
    outfile,
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    logLevel: 'warning',
    external: ['pg-native', 'cloudflare:sockets', 'bufferutil', 'utf-8-validate'],
    banner: {
      js: `import { createRequire as __createRequire } from 'node:module'; const require = __createRequire(import.meta.url);`,
    },
  });
  return outfile;
}

type Kind = WorkerEvent['kind'];
export type EventOf<K extends Kind> = Extract<WorkerEvent, { kind: K }>;
export type Ended = EventOf<'told'> | EventOf<'threw'> | { readonly kind: 'died' };

interface Waiter {
  readonly matches: (event: WorkerEvent) => boolean;
  readonly resolve: (event: WorkerEvent) => void;
  readonly reject: (error: Error) => void;
}

/** What a worker said of one delivery, and what it will say. */
export class Delivery {
  readonly order: Order;
  readonly events: WorkerEvent[] = [];
  #waiters: Waiter[] = [];
  #died = false;

  constructor(order: Order) {
    this.order = order;
  }

  /** The first event of these kinds, also of those that have been. Rejects if the worker dies without it. */
  async first<K extends Kind>(...kinds: readonly K[]): Promise<EventOf<K>> {
    const wanted: readonly Kind[] = kinds;
    return (await this.firstWhere(({ kind }) => wanted.includes(kind), kinds.join(' or '))) as EventOf<K>;
  }

  /** Whether all is over: the path and, where it began, the work. */
  get isOver(): boolean {
    return this.#died || (this.#has('told', 'threw') && (this.#has('left') || !this.#has('begun')));
  }

  get isTold(): boolean {
    return this.#has('told', 'threw');
  }

  async ended(): Promise<Ended> {
    try {
      return await this.first('told', 'threw');
    } catch (error) {
      if (this.#died) return { kind: 'died' };
      throw error;
    }
  }

  #has(...kinds: readonly Kind[]): boolean {
    return this.events.some(({ kind }) => kinds.includes(kind));
  }

  async firstWhere(matches: (event: WorkerEvent) => boolean, what = 'event'): Promise<WorkerEvent> {
    const past = this.events.find(matches);
    if (past) return past;
    if (this.#died) throw new Error(`the worker died before its ${what}`);
    const coming = new Promise<WorkerEvent>((resolve, reject) => {
      this.#waiters.push({ matches, resolve, reject });
    });
    return within(patienceMs, `${what} of ${this.order.job} ${this.order.slot}`, coming);
  }

  hear(event: WorkerEvent): void {
    this.events.push(event);
    const heard = this.#waiters.filter(({ matches }) => matches(event));
    this.#waiters = this.#waiters.filter((waiter) => !heard.includes(waiter));
    for (const { resolve } of heard) resolve(event);
  }

  workerDied(): void {
    this.#died = true;
    for (const { reject } of this.#waiters.splice(0)) reject(new Error('the worker died'));
  }
}

/** As what a path may throw: it could not reach the server, or no longer. Whatever else it meets has a record. */
const permitted = new Set(['CannotConnect', 'ConnectionLost', 'NoAnswer', 'OutcomeUnknown']);

export class Worker {
  readonly #process: ChildProcess;
  readonly #deliveries = new Map<number, Delivery>();
  readonly #onEvent: (event: WorkerEvent) => void;
  readonly #gone: Promise<unknown>;
  /** Once it can take orders. */
  readonly ready: Promise<void>;
  #nowReady: () => void = () => undefined;
  /** For how long its event loop once stood still, as far as it has said. */
  longestLagMs = 0;
  #orders = 0;

  constructor(bundle: string, outsideUrl: string, onEvent: (event: WorkerEvent) => void) {
    this.#onEvent = onEvent;
    this.ready = new Promise((resolve) => (this.#nowReady = resolve));
    this.#process = fork(bundle, [], {
      execArgv: [],
      env: { ...process.env, FAULTS_OUTSIDE_URL: outsideUrl },
    });
    this.#process.on('message', (event: WorkerEvent) => this.#hear(event));
    // What is sent to a process that is just being killed comes back as an error; its end is noticed below.
    this.#process.on('error', () => undefined);
    // Only then has all been heard that it said.
    this.#gone = Promise.all([once(this.#process, 'exit'), once(this.#process, 'disconnect')]).then(() => {
      for (const delivery of this.#deliveries.values()) delivery.workerDied();
    });
    this.#gone.catch(() => undefined);
  }

  get isAlive(): boolean {
    return this.#process.exitCode === null && this.#process.signalCode === null;
  }

  get isFree(): boolean {
    return this.isAlive && [...this.#deliveries.values()].every(({ isOver }) => isOver);
  }

  deliver(order: Omit<Order, 'id'>): Delivery {
    const delivery = new Delivery({ ...order, id: ++this.#orders });
    this.#deliveries.set(delivery.order.id, delivery);
    this.#process.send(delivery.order, () => undefined);
    return delivery;
  }

  /** @returns when it was killed, which is before it was gone */
  async kill(): Promise<number> {
    const killedAt = Date.now();
    this.#process.kill('SIGKILL');
    await this.#gone;
    return killedAt;
  }

  freeze(): number {
    this.#process.kill('SIGSTOP');
    return Date.now();
  }

  thaw(): number {
    const thawedAt = Date.now();
    this.#process.kill('SIGCONT');
    return thawedAt;
  }

  #hear(event: WorkerEvent): void {
    if (event.kind === 'ready') this.#nowReady();
    if (event.kind === 'stopped') this.longestLagMs = Math.max(this.longestLagMs, event.lagMs);
    this.#onEvent(event);
    this.#deliveries.get(event.order)?.hear(event);
  }
}

/** All processes of a row; none outlives it. */
export class Crew {
  readonly #bundle: string;
  readonly #outsideUrl: string;
  readonly #all = new Set<Worker>();
  readonly #idle: Worker[] = [];
  /** What no worker caught. */
  readonly strays: string[] = [];
  /** Each start of work, of any worker. */
  readonly begun: EventOf<'begun'>[] = [];
  /** Of each run until when its `check()` has passed, as far as its process could still say. */
  readonly vouched: Vouched[] = [];
  /** Each record that a path answered. */
  readonly told: RunRecord[] = [];
  /** Each outcome whose log line was written. */
  readonly logged: EventOf<'logged'>[] = [];
  readonly #onExit = () => {
    for (const worker of this.#all) void worker.kill();
  };

  constructor(bundle: string, outsideUrl: string) {
    [this.#bundle, this.#outsideUrl] = [bundle, outsideUrl];
    // A frozen one would not hear that its parent is gone.
    process.once('exit', this.#onExit);
  }

  /** One that is ready, so that its start does not count as part of what is measured. */
  async hire(): Promise<Worker> {
    const free = this.#idle.pop();
    if (free) {
      free.longestLagMs = 0;
      return free;
    }
    const worker = new Worker(this.#bundle, this.#outsideUrl, (event) => this.#hear(event));
    this.#all.add(worker);
    await within(patienceMs, 'worker', worker.ready);
    return worker;
  }

  /** To be hired again, if it has nothing left to do; else its end. */
  async release(worker: Worker): Promise<void> {
    if (worker.isFree) {
      this.#idle.push(worker);
      return;
    }
    this.#all.delete(worker);
    await worker.kill();
  }

  async dismiss(): Promise<void> {
    await Promise.all([...this.#all].map((worker) => worker.kill()));
    process.off('exit', this.#onExit);
  }

  #hear(event: WorkerEvent): void {
    if (event.kind === 'begun') this.begun.push(event);
    if (event.kind === 'stopped' || event.kind === 'left') this.vouched.push(event.vouched);
    if (event.kind === 'told') this.told.push(event.run);
    if (event.kind === 'logged') this.logged.push(event);
    if (event.kind === 'threw' && !permitted.has(event.error.name))
      this.strays.push(`a delivery left no record: ${event.error.name}: ${event.error.message}`);
    if (event.kind === 'stray') this.strays.push(`nobody caught ${event.error.name}: ${event.error.message}`);
  }
}

/** @throws {Error} naming what did not come */
export async function within<T>(ms: number, what: string, promise: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const tooLong = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} within ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([promise, tooLong]);
  } finally {
    clearTimeout(timer);
  }
}
