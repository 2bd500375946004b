/** A server of Node's before the HTTP app. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import type { createApp } from '../../src/http/app.ts';

type App = ReturnType<typeof createApp>;

export interface Served {
  readonly port: number;
  readonly origin: string;
  close(): void;
}

/** A server of Node's before the app. What no Request can be made of it answers with 400 by itself. */
export async function serve(app: App): Promise<Served> {
  const server = createServer((incoming, outgoing) => {
    answer(app, incoming, outgoing).catch(() => outgoing.destroy());
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    port,
    origin: `http://127.0.0.1:${port}`,
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
}

async function answer(app: App, incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
  let request: Request;
  try {
    request = requestOf(incoming);
  } catch {
    outgoing.writeHead(400).end();
    return;
  }
  const response = await app.fetch(request, { incoming });
  const body = Buffer.from(await response.arrayBuffer());
  outgoing.writeHead(response.status, Object.fromEntries(response.headers)).end(body);
}

function requestOf(incoming: IncomingMessage): Request {
  const { method = 'GET', url = '/', rawHeaders } = incoming;
  const headers = new Headers();
  for (let index = 0; index < rawHeaders.length; index += 2)
    headers.append(rawHeaders[index] ?? '', rawHeaders[index + 1] ?? '');
  const hasBody = !['GET', 'HEAD'].includes(method);
  const body = hasBody ? { body: Readable.toWeb(incoming) as ReadableStream, duplex: 'half' } : {};
  return new Request(new URL(url, 'http://127.0.0.1'), { method, headers, ...body } as RequestInit);
}
