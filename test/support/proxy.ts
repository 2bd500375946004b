/**
 * A TCP proxy between a client and PostgreSQL that reads along (wire protocol 3) and breaks the connection in the
 * ways a network does.
 *
 * | call | client and server | bytes |
 * |---|---|---|
 * | `cut()` | both see their connection end | lost |
 * | `partition()` | neither is told anything | lost |
 * | `stall()` … `resume()` | neither is told anything | kept, delivered in order on `resume()` |
 * | `delay(ms)` | notice the time | delivered in order, each `ms` later |
 * | `swallowReplyTo(sql)` | the server has done what it was asked, the client hears nothing more | replies lost |
 * | `waitForQuery(sql, { hold: true })` | the server has not been asked yet | kept from that message on |
 *
 * Tests wait for what they look for (`waitForQuery`, `swallowReplyTo`), never for a time.
 */
import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort } from '../../infra/local/postgres.ts';

export interface ProxyOptions {
  readonly targetHost?: string;
  readonly targetPort: number;
  /** A free one if not given. */
  readonly port?: number;
}

export interface PartitionOptions {
  /** What becomes of clients that connect meanwhile: never an answer, an error, or the usual service. */
  readonly newConnections?: 'hang' | 'refuse' | 'accept';
  /** Whether the server is left with its end of the connection (so it does not learn), or loses it. */
  readonly serverSide?: 'open' | 'dropped';
}

/** A piece of the SQL text, a pattern, or any other test of it. */
export type QueryMatch = string | RegExp | ((sql: string) => boolean);

export type Direction = 'toServer' | 'toClient' | 'both';

export interface ProxiedConnection {
  readonly id: number;
  readonly isOpen: boolean;
  /** Query and Sync messages, each of which has one answer to wait for. Connecting itself sends none. */
  readonly roundTrips: number;
  /** The text of each Query and Parse message, in order. */
  readonly queries: readonly string[];
  cut(): void;
}

export interface Proxy {
  readonly port: number;
  /** The same URL, by way of this proxy. */
  url(serverUrl: string): string;
  /** All since the start, closed ones too. */
  readonly connections: readonly ProxiedConnection[];
  readonly roundTrips: number;
  readonly queries: readonly string[];
  /** The connection that next sends such a query; with `hold` before the server gets it, until `resume()`. */
  waitForQuery(match: QueryMatch, options?: { readonly hold?: boolean }): Promise<ProxiedConnection>;
  /** Resolves when the server has answered the next such query in full, and the client has got none of it. */
  swallowReplyTo(match: QueryMatch): Promise<ProxiedConnection>;
  cut(): void;
  partition(options?: PartitionOptions): void;
  /**
   * Ends a partition. Connections on which nothing was lost live on; where anything was, there is a gap in the
   * stream that no peer would accept, so these are cut now, and those that were left hanging too.
   */
  heal(): Promise<void>;
  stall(direction?: Direction): void;
  resume(direction?: Direction): void;
  delay(ms: number): void;
  stop(): Promise<void>;
}

export async function startProxy(options: ProxyOptions): Promise<Proxy> {
  const proxy = new FaultyProxy(options, options.port ?? (await freePort()));
  await proxy.listen();
  return proxy;
}

interface Watcher {
  readonly matches: (sql: string) => boolean;
  readonly then: 'tell' | 'hold' | 'swallow';
  readonly resolve: (connection: ProxiedConnection) => void;
}

class FaultyProxy implements Proxy {
  readonly port: number;
  readonly #target: { readonly host: string; readonly port: number };
  readonly #listener: Server;
  readonly #connections: Connection[] = [];
  readonly #held = { toServer: false, toClient: false };
  #watchers: Watcher[] = [];
  #hanging: Socket[] = [];
  #hangNew = false;
  #delayMs = 0;

  constructor(options: ProxyOptions, port: number) {
    this.port = port;
    this.#target = { host: options.targetHost ?? '127.0.0.1', port: options.targetPort };
    this.#listener = createServer({ allowHalfOpen: true, noDelay: true }, (client) => this.#accept(client));
  }

  get connections(): readonly ProxiedConnection[] {
    return this.#connections;
  }

  get roundTrips(): number {
    return this.#connections.reduce((sum, connection) => sum + connection.roundTrips, 0);
  }

  get queries(): readonly string[] {
    return this.#connections.flatMap((connection) => connection.queries);
  }

  url(serverUrl: string): string {
    const url = new URL(serverUrl);
    [url.hostname, url.port] = ['127.0.0.1', String(this.port)];
    return url.href;
  }

  waitForQuery(match: QueryMatch, { hold = false } = {}): Promise<ProxiedConnection> {
    return this.#watch(match, hold ? 'hold' : 'tell');
  }

  swallowReplyTo(match: QueryMatch): Promise<ProxiedConnection> {
    return this.#watch(match, 'swallow');
  }

  cut(): void {
    for (const connection of this.#open()) connection.cut();
  }

  partition({ newConnections = 'hang', serverSide = 'open' }: PartitionOptions = {}): void {
    for (const connection of this.#open()) connection.partition(serverSide);
    this.#hangNew = newConnections === 'hang';
    if (newConnections === 'refuse') this.#listener.close();
  }

  async heal(): Promise<void> {
    for (const connection of this.#open()) connection.heal();
    for (const client of this.#hanging.splice(0)) client.destroy();
    this.#hangNew = false;
    if (!this.#listener.listening) await this.listen();
  }

  stall(direction: Direction = 'both'): void {
    this.#hold(direction, true);
  }

  resume(direction: Direction = 'both'): void {
    this.#hold(direction, false);
  }

  delay(ms: number): void {
    this.#delayMs = ms;
    for (const connection of this.#open()) connection.delay(ms);
  }

  async listen(): Promise<void> {
    this.#listener.listen(this.port, '127.0.0.1');
    await once(this.#listener, 'listening');
  }

  async stop(): Promise<void> {
    const closed = this.#listener.listening ? once(this.#listener, 'close') : undefined;
    this.#listener.close();
    this.cut();
    for (const client of this.#hanging.splice(0)) client.destroy();
    await closed;
  }

  #accept(client: Socket): void {
    if (this.#hangNew) {
      this.#hanging.push(client.on('error', () => undefined).resume());
      return;
    }
    const server = connect({ ...this.#target, allowHalfOpen: true, noDelay: true });
    const id = this.#connections.length + 1;
    const connection = new Connection(id, client, server, (sql) => this.#takeWatchers(sql));
    connection.delay(this.#delayMs);
    connection.hold('toServer', this.#held.toServer);
    connection.hold('toClient', this.#held.toClient);
    this.#connections.push(connection);
  }

  #hold(direction: Direction, held: boolean): void {
    for (const way of ['toServer', 'toClient'] as const) {
      if (direction !== 'both' && direction !== way) continue;
      this.#held[way] = held;
      for (const connection of this.#open()) connection.hold(way, held);
    }
  }

  #watch(match: QueryMatch, then: Watcher['then']): Promise<ProxiedConnection> {
    return new Promise((resolve) => {
      this.#watchers.push({ matches: matcher(match), then, resolve });
    });
  }

  /** Each waits for one query only; several may wait for the same. */
  #takeWatchers(sql: string): Watcher[] {
    const found = this.#watchers.filter((watcher) => watcher.matches(sql));
    this.#watchers = this.#watchers.filter((watcher) => !found.includes(watcher));
    return found;
  }

  #open(): Connection[] {
    return this.#connections.filter((connection) => connection.isOpen);
  }
}

function matcher(match: QueryMatch): (sql: string) => boolean {
  if (typeof match === 'string') return (sql) => sql.includes(match);
  return match instanceof RegExp ? (sql) => match.test(sql) : match;
}

class Connection implements ProxiedConnection {
  readonly id: number;
  readonly queries: string[] = [];
  isOpen = true;
  readonly #client: Socket;
  readonly #server: Socket;
  readonly #toServer: Lane;
  readonly #toClient: Lane;
  readonly #takeWatchers: (sql: string) => Watcher[];
  readonly #fromClient = new Framer('startup');
  readonly #fromServer = new Framer('messages');
  #asked = 0;
  /** -1 until the answer to the connecting itself, which is nobody's query. */
  #answered = -1;
  #swallow: { readonly after: number; readonly done: () => void } | undefined;

  constructor(id: number, client: Socket, server: Socket, takeWatchers: (sql: string) => Watcher[]) {
    [this.id, this.#client, this.#server, this.#takeWatchers] = [id, client, server, takeWatchers];
    this.#toServer = new Lane(client, server);
    this.#toClient = new Lane(server, client);
    client.on('data', (chunk) => this.#hearClient(chunk));
    server.on('data', (chunk) => this.#hearServer(chunk));
    for (const [socket, lane] of [
      [client, this.#toServer],
      [server, this.#toClient],
    ] as const) {
      socket.on('error', () => lane.push('reset'));
      socket.on('end', () => lane.push('end'));
      socket.on('close', () => (this.isOpen = !(client.destroyed && server.destroyed)));
    }
  }

  get roundTrips(): number {
    return this.#asked;
  }

  cut(): void {
    this.#client.destroy();
    this.#server.destroy();
  }

  partition(serverSide: 'open' | 'dropped'): void {
    this.#toServer.lose();
    this.#toClient.lose();
    if (serverSide === 'dropped') this.#server.destroy();
  }

  heal(): void {
    const whole = [this.#toServer, this.#toClient].every((lane) => lane.stopLosing());
    if (!whole || this.#server.destroyed) this.cut();
  }

  delay(ms: number): void {
    this.#toServer.delayMs = ms;
    this.#toClient.delayMs = ms;
  }

  hold(way: 'toServer' | 'toClient', held: boolean): void {
    (way === 'toServer' ? this.#toServer : this.#toClient).hold(held);
  }

  #hearClient(chunk: Buffer): void {
    for (const { bytes, message } of this.#fromClient.feed(chunk)) {
      if (message !== undefined) this.#noteRequest(message);
      this.#toServer.push(bytes);
    }
  }

  #noteRequest(message: Message): void {
    if (message.type === 'encryption?') this.#fromServer.expectByte();
    const sql = sqlOf(message);
    if (sql !== undefined) this.#noteQuery(sql);
    if (message.type === 'Q' || message.type === 'S') this.#asked += 1;
  }

  #noteQuery(sql: string): void {
    this.queries.push(sql);
    for (const watcher of this.#takeWatchers(sql)) this.#serve(watcher);
  }

  #serve({ then, resolve }: Watcher): void {
    if (then === 'swallow') {
      this.#swallow ??= { after: this.#asked, done: () => resolve(this) };
      return;
    }
    if (then === 'hold') this.#toServer.hold(true);
    resolve(this);
  }

  #hearServer(chunk: Buffer): void {
    for (const { bytes, message } of this.#fromServer.feed(chunk)) {
      const swallow = this.#swallow;
      const swallowed = swallow !== undefined && this.#answered >= swallow.after;
      if (message?.type === 'Z') this.#answered += 1;
      if (swallowed) this.#toClient.lose();
      this.#toClient.push(bytes);
      if (swallowed && message?.type === 'Z') swallow.done();
    }
  }
}

/** One direction of a connection. What comes in goes out in the same order, or is kept, or is lost. */
class Lane {
  delayMs = 0;
  readonly #from: Socket;
  readonly #to: Socket;
  #queue: { readonly item: Buffer | 'end' | 'reset'; readonly dueAt: number }[] = [];
  #held = false;
  #loses = false;
  #hasLost = false;
  #pumping = false;

  constructor(from: Socket, to: Socket) {
    [this.#from, this.#to] = [from, to];
  }

  push(item: Buffer | 'end' | 'reset'): void {
    if (this.#loses) this.#hasLost = true;
    else this.#queue.push({ item, dueAt: performance.now() + this.delayMs });
    this.#keepWithinBounds();
    this.#pump().catch(() => this.#to.destroy());
  }

  hold(held: boolean): void {
    this.#held = held;
    this.#pump().catch(() => this.#to.destroy());
  }

  /** From now on; what is on its way is lost too. */
  lose(): void {
    this.#hasLost ||= this.#queue.length > 0;
    this.#queue = [];
    this.#loses = true;
    this.#keepWithinBounds();
  }

  /** Whether all that was sent has arrived or still will. */
  stopLosing(): boolean {
    this.#loses = false;
    return !this.#hasLost;
  }

  async #pump(): Promise<void> {
    if (this.#pumping) return;
    this.#pumping = true;
    while (!this.#held) {
      const next = this.#queue[0];
      if (next === undefined) break;
      const waitMs = next.dueAt - performance.now();
      if (waitMs > 0) {
        // Then looked at anew: meanwhile it may have been held or lost.
        await sleep(Math.ceil(waitMs));
        continue;
      }
      this.#queue.shift();
      await this.#deliver(next.item);
    }
    this.#pumping = false;
    this.#keepWithinBounds();
  }

  async #deliver(item: Buffer | 'end' | 'reset'): Promise<void> {
    if (item === 'reset') this.#to.resetAndDestroy();
    else if (!this.#to.writable) return;
    else if (item === 'end') this.#to.end();
    else if (!this.#to.write(item)) await settled(this.#to);
  }

  /** A sender whose bytes are kept must come to wait, as it does when the buffers of a network are full. */
  #keepWithinBounds(): void {
    if (this.#queue.length < 64) this.#from.resume();
    else this.#from.pause();
  }
}

/** Until it can take more, or never will. */
function settled(socket: Socket): Promise<unknown> {
  return Promise.race([once(socket, 'drain'), once(socket, 'close')]).catch(() => undefined);
}

interface Message {
  /** The protocol's type byte; of the untyped messages at the beginning only these two matter. */
  readonly type: string;
  readonly body: Buffer;
}

interface Segment {
  readonly bytes: Buffer;
  /** The message that these bytes complete, if they do. */
  readonly message: Message | undefined;
}

const ENCRYPTION_REQUESTS = [80877103, 80877104];

/** Cuts a stream at the ends of its messages; a part of a message passes at once, without waiting for the rest. */
class Framer {
  #phase: 'startup' | 'messages';
  #bareBytes = 0;
  #partial: Buffer = Buffer.alloc(0);

  constructor(phase: 'startup' | 'messages') {
    this.#phase = phase;
  }

  /** The answer to a request for encryption is one byte without a frame. */
  expectByte(): void {
    this.#bareBytes += 1;
  }

  *feed(chunk: Buffer): Generator<Segment> {
    const data = Buffer.concat([this.#partial, chunk]);
    let passed = this.#partial.length;
    let start = 0;
    for (let end = this.#endOf(data, start); end <= data.length; end = this.#endOf(data, start)) {
      const message = this.#read(data.subarray(start, end));
      yield { bytes: data.subarray(passed, end), message };
      start = passed = end;
    }
    if (passed < data.length) yield { bytes: data.subarray(passed), message: undefined };
    this.#partial = data.subarray(start);
  }

  /** Infinity while it cannot be known. */
  #endOf(data: Buffer, start: number): number {
    if (this.#bareBytes > 0) return start + 1;
    const lengthAt = this.#phase === 'startup' ? start : start + 1;
    return data.length < lengthAt + 4 ? Infinity : lengthAt + data.readInt32BE(lengthAt);
  }

  #read(bytes: Buffer): Message {
    if (this.#bareBytes > 0) {
      this.#bareBytes -= 1;
      return { type: 'encryption!', body: bytes };
    }
    if (this.#phase === 'messages') return { type: bytes.toString('latin1', 0, 1), body: bytes.subarray(5) };
    if (ENCRYPTION_REQUESTS.includes(bytes.readInt32BE(4))) return { type: 'encryption?', body: bytes };
    this.#phase = 'messages';
    return { type: 'startup', body: bytes };
  }
}

/** Query holds the text alone, Parse has the statement's name before it. */
function sqlOf({ type, body }: Message): string | undefined {
  if (type !== 'Q' && type !== 'P') return undefined;
  const start = type === 'Q' ? 0 : body.indexOf(0) + 1;
  return body.toString('utf8', start, body.indexOf(0, start));
}
