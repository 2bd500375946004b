import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface Call {
  /** `AWSEvents.PutEvents`, or the path where the service names its operation there. */
  readonly operation: string;
  readonly headers: IncomingMessage['headers'];
  readonly body: unknown;
}

export interface AwsEndpoint {
  readonly url: string;
  readonly calls: Call[];
  stop(): Promise<void>;
}

/** A local endpoint that a real AWS SDK client talks to; `answer` decides each call. */
export async function startAwsEndpoint(
  answer: (call: Call, response: ServerResponse) => void | Promise<void>,
): Promise<AwsEndpoint> {
  const calls: Call[] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const text = Buffer.concat(chunks).toString();
      const operation = request.headers['x-amz-target'] ?? request.url ?? '';
      const call = {
        operation: String(operation),
        headers: request.headers,
        body: text ? (JSON.parse(text) as unknown) : null,
      };
      calls.push(call);
      void answer(call, response);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    calls,
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

export function reply(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/x-amz-json-1.1' });
  response.end(JSON.stringify(body));
}
