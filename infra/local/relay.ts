/**
 * A WebSocket-to-TCP relay, as Neon runs one before its databases: with it `@neondatabase/serverless` talks to a
 * local server. One WebSocket is one TCP connection; the address to reach comes in the query of the URL and must be
 * among those allowed, since a relay that goes anywhere is a hole in whatever wall the machine stands behind.
 *
 * Both ways are paused while the other side cannot take more, so a result that nobody reads makes the server wait,
 * as on a direct connection.
 */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import { connect, type AddressInfo, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { type WebSocket, WebSocketServer } from 'ws';

export interface RelayOptions {
  /** A free one if not given. */
  readonly port?: number;
  /** The addresses it may connect to, each as 'host:port'. */
  readonly allow: readonly string[];
}

export interface Relay {
  readonly port: number;
  /** Append 'host:port' to it for neonConfig.wsProxy: `(host, port) => relay.wsProxy + host + ':' + port`. */
  readonly wsProxy: string;
  /** How many are open now. */
  connections(): number;
  /** Drops every connection without a word; new ones are welcome. */
  kill(): void;
  /** Forwards nothing more, either way, and answers no new connection, but keeps all of them open. */
  stall(): void;
  /** Forwards what has waited, and goes on. */
  resume(): void;
  stop(): Promise<void>;
}

/** Its message is one line that says what is wrong and what to do. */
export class RelayError extends Error {
  override readonly name = 'RelayError';
  readonly code = 'port_in_use';
}

/** Above this much unsent data towards the client, the server is read no further. */
const HIGH_WATER_BYTES = 1024 * 1024;

export async function startRelay(options: RelayOptions): Promise<Relay> {
  const webSockets = new WebSocketServer({ noServer: true, perMessageDeflate: false });
  const tunnels = new Set<Tunnel>();
  const gate = new Gate();
  const accept = async (request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> => {
    await gate.opened;
    const address = addressIn(request);
    // Whoever says an origin is a page in a browser, and pages may open WebSockets to any address.
    const allowed = options.allow.includes(address) && request.headers.origin === undefined;
    const tcp = allowed ? await reach(address) : undefined;
    if (tcp === undefined) {
      socket.end(refusal(allowed ? '502 Bad Gateway' : '403 Forbidden'));
      return;
    }
    // Also covers a client whose handshake is wrong, or who has left meanwhile: they get no tunnel.
    socket.once('close', () => tcp.destroySoon());
    if (socket.destroyed) tcp.destroy();
    webSockets.handleUpgrade(request, socket, head, (ws) => {
      const tunnel = new Tunnel(ws, tcp, gate);
      tunnels.add(tunnel);
      ws.once('close', () => tunnels.delete(tunnel));
    });
  };

  const http = createServer((_, response) => response.writeHead(426).end());
  const clients = rememberConnections(http);
  http.on('upgrade', (request, socket, head) => {
    socket.on('error', () => socket.destroy());
    accept(request, socket, head).catch(() => socket.destroy());
  });
  const port = await listen(http, options.port ?? 0);
  const kill = () => {
    tunnels.forEach((tunnel) => tunnel.drop());
    clients.forEach((client) => client.destroy());
  };
  return {
    port,
    wsProxy: `127.0.0.1:${port}/v1?address=`,
    connections: () => tunnels.size,
    kill,
    stall() {
      gate.close();
      tunnels.forEach((tunnel) => tunnel.flow());
    },
    resume() {
      gate.open();
      tunnels.forEach((tunnel) => tunnel.flow());
    },
    async stop() {
      if (!http.listening) return;
      const closed = once(http, 'close');
      http.close();
      kill();
      await closed;
    },
  };
}

/** Open or closed for all tunnels at once; new connections wait before it. */
class Gate {
  opened = Promise.resolve();
  isOpen = true;
  open: () => void = () => undefined;

  close(): void {
    if (!this.isOpen) return;
    this.isOpen = false;
    this.opened = new Promise((resolve) => {
      this.open = () => {
        this.isOpen = true;
        resolve();
      };
    });
  }
}

class Tunnel {
  readonly #ws: WebSocket;
  readonly #tcp: Socket;
  readonly #gate: Gate;

  constructor(ws: WebSocket, tcp: Socket, gate: Gate) {
    [this.#ws, this.#tcp, this.#gate] = [ws, tcp, gate];
    const flow = () => this.flow();
    ws.on('message', (data: Buffer) => {
      if (!tcp.write(data)) flow();
    });
    tcp.on('drain', flow);
    tcp.on('data', (chunk) => {
      ws.send(chunk, flow);
      flow();
    });
    // An error is always followed by a close, and the end of one side is the end of the other.
    ws.on('error', () => undefined).on('close', () => tcp.destroySoon());
    tcp.on('close', () => ws.close());
    flow();
  }

  /** Reads from each side only while the other can take it and the relay is not stalled. */
  flow(): void {
    const open = this.#gate.isOpen;
    if (open && !this.#tcp.writableNeedDrain) this.#ws.resume();
    else this.#ws.pause();
    if (open && this.#ws.bufferedAmount < HIGH_WATER_BYTES) this.#tcp.resume();
    else this.#tcp.pause();
  }

  drop(): void {
    this.#ws.terminate();
    this.#tcp.destroy();
  }
}

function addressIn(request: IncomingMessage): string {
  return new URL(request.url ?? '/', 'http://relay').searchParams.get('address') ?? '';
}

async function reach(address: string): Promise<Socket | undefined> {
  const [, host, port] = /^(.*):(\d+)$/.exec(address) ?? [];
  if (host === undefined) return undefined;
  const tcp = connect({ host, port: Number(port), noDelay: true });
  tcp.on('error', () => undefined);
  return once(tcp, 'connect').then(
    () => tcp,
    () => undefined,
  );
}

function refusal(status: string): string {
  return `HTTP/1.1 ${status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n`;
}

/** The HTTP server forgets a connection when it is upgraded, but does not close before that has ended. */
function rememberConnections(http: Server): ReadonlySet<Socket> {
  const clients = new Set<Socket>();
  http.on('connection', (client) => {
    client.setNoDelay(true);
    clients.add(client);
    client.once('close', () => clients.delete(client));
  });
  return clients;
}

async function listen(http: Server, port: number): Promise<number> {
  http.listen(port, '127.0.0.1');
  try {
    await once(http, 'listening');
  } catch (cause) {
    const what = `Port ${port}, wanted for the WebSocket relay, cannot be used`;
    throw new RelayError(`${what}: stop what uses it, or choose another port`, { cause });
  }
  return (http.address() as AddressInfo).port;
}
