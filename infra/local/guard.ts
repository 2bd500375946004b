/**
 * Who may speak to a server on this machine. It listens on this machine alone, but the browser on it is led by any
 * site: a page may send requests to any port here, and a name of its own may come to mean this address while it is open
 * (DNS rebinding). So a request must name this machine as its host, and one that says which page it comes from must
 * come from this very server's.
 */
import http, {
  type IncomingMessage,
  type RequestListener,
  type ServerOptions,
  type ServerResponse,
} from 'node:http';
import { syncBuiltinESMExports } from 'node:module';

export interface Refusal {
  readonly status: 403 | 421;
  readonly code: string;
  readonly detail: string;
}

type Asked = Pick<IncomingMessage, 'headers'> & {
  readonly socket: { readonly localAddress?: string | undefined };
};

/** Undefined for a request that may come in. */
export function refusalOf({ headers, socket }: Asked): Refusal | undefined {
  const host = urlOf(`http://${headers.host ?? ''}`);
  if (host === undefined || !isThisMachine(host.hostname, socket.localAddress))
    return {
      status: 421,
      code: 'not_this_host',
      detail: 'Only localhost and the addresses of this machine are served here.',
    };
  const { origin } = headers;
  if (origin === undefined || origin === host.origin) return undefined;
  return { status: 403, code: 'foreign_origin', detail: 'Pages of other origins may not ask here.' };
}

/** None for what is more than a host and a port. */
function urlOf(text: string): URL | undefined {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  return url?.href === `${url?.origin}/` ? url : undefined;
}

/** By its name, or by the address that it was reached at, which no name of another's stands for. */
function isThisMachine(hostname: string, reachedAt = ''): boolean {
  const name = hostname.replace(/\.$/, '');
  if (name === 'localhost' || name.endsWith('.localhost') || name === '[::1]') return true;
  return /^127(\.\d+){3}$/.test(name) || name.replace(/^\[|\]$/g, '') === reachedAt.replace(/^::ffff:/, '');
}

class GuardedServer extends http.Server {
  override emit(event: string, ...given: unknown[]): boolean {
    if (event !== 'request') return super.emit(event, ...given);
    const [request, response] = given as [IncomingMessage, ServerResponse];
    const refusal = refusalOf(request);
    if (refusal === undefined) return super.emit(event, ...given);
    answer(response, refusal);
    return true;
  }
}

function answer(response: ServerResponse, { status, code, detail }: Refusal): void {
  const title = http.STATUS_CODES[status];
  response.writeHead(status, { 'content-type': 'application/problem+json', 'cache-control': 'no-store' });
  response.end(JSON.stringify({ type: 'about:blank', title, status, code, detail }));
}

/** Every HTTP server that this process makes from now on. */
export function guardServers(): void {
  http.createServer = (options?: ServerOptions | RequestListener, listener?: RequestListener) =>
    typeof options === 'object' ? new GuardedServer(options, listener) : new GuardedServer(options);
  syncBuiltinESMExports();
}
