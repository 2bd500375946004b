/**
 * A cable that can be cut: TCP to a port of this machine. Once it is cut nobody is told anything: what is sent vanishes, both
 * ends stay open, and whoever connects anew hears nothing.
 */
import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';

export interface Cable {
  readonly port: number;
  cut(): void;
  remove(): void;
}

export async function layCable(target: number): Promise<Cable> {
  const ends = new Set<Socket>();
  let isCut = false;
  const listener = createServer({ noDelay: true }, (client) => {
    const server = connect({ port: target, host: '127.0.0.1', noDelay: true });
    for (const [from, to] of [
      [client, server],
      [server, client],
    ] as const) {
      ends.add(from.on('error', () => undefined));
      from.on('data', (chunk) => isCut || to.write(chunk));
      from.on('close', () => isCut || to.destroy());
    }
  });
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  return {
    port: (listener.address() as AddressInfo).port,
    cut: () => void (isCut = true),
    remove() {
      listener.close();
      for (const end of ends) end.destroy();
    },
  };
}
