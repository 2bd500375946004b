import { lookup as resolve } from 'node:dns';
import type { LookupFunction } from 'node:net';
import { BlockList, isIP } from 'node:net';
import { request as plainRequest, type IncomingMessage, type RequestOptions } from 'node:http';
import { request as tlsRequest } from 'node:https';
import type { RunRecord } from '../run.ts';
import { recordWithin } from './fit.ts';
import { refusalOf, wanting, type Report, type Sink, type Wanted } from './sink.ts';

/** This module's secret: how an outcome is posted to an address of somebody else's, and what must not come of that. */

/** What is posted: the whole record as Standard Webhooks have it; a ping of healthchecks.io's kind; a message for Slack. */
export type WebhookShape = 'standard' | 'healthchecks' | 'slack';

export interface WebhookOptions extends Wanted {
  /**
   * Where to; https, unless `allowPrivate`. It may hold a secret, and so is shown nowhere. For `healthchecks` the ping URL
   * of the check: a failure is told at `…/fail`.
   */
  readonly url: string;
  /** Kept with each record that has arrived; default `webhook:` and the host. Never rename one. */
  readonly name?: string;
  /** Default `standard`. */
  readonly shape?: WebhookShape;
  /** Of Standard Webhooks, `whsec_…`: each signs, so that one can take the other's place. */
  readonly secrets?: readonly string[];
  /** For one outcome, ms; default 5 s, and no longer than publishing as a whole may take. */
  readonly timeoutMs?: number;
  /** Addresses of private networks, and http. Else they are refused, whatever name or redirect leads there. */
  readonly allowPrivate?: boolean;
}

/** Options that can't be. Its message names no secret and no URL. */
export class WebhookError extends Error {
  override readonly name = 'WebhookError';
}

const redirectsAtMost = 3;
const largest = 64 * 1024;
const defaultTimeoutMs = 5_000;

/** @throws {WebhookError} */
export function webhookSink(options: WebhookOptions): Sink {
  const { shape = 'standard', secrets = [], allowPrivate = false, timeoutMs = defaultTimeoutMs } = options;
  const url = urlOf(options);
  demandSecrets(secrets);
  const post = async (run: RunRecord, signal: AbortSignal) => {
    const message = shapes[shape](run, url);
    const headers = { ...message.headers, ...(await signatures(secrets, run.id, message.body)) };
    const limit = AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]);
    await deliver({ ...message, headers, allowPrivate, signal: limit }, redirectsAtMost);
  };
  return {
    name: options.name ?? `webhook:${url.host}`,
    wants: wanting(options),
    async send(records, signal, report) {
      const arrived = new Set<string>();
      await Promise.all(
        records.map(async (run) => tryOne(run, async () => post(run, signal), arrived, report)),
      );
      return arrived;
    },
  };
}

async function tryOne(
  { id }: RunRecord,
  post: () => Promise<void>,
  arrived: Set<string>,
  report: Report,
): Promise<void> {
  try {
    await post();
    arrived.add(id);
  } catch (error) {
    report(id, refusalOf(error));
  }
}

// --- options ------------------------------------------------------------------------------------

function urlOf({ url: given, allowPrivate = false }: WebhookOptions): URL {
  const url = URL.canParse(given) ? new URL(given) : null;
  if (url === null || !/^https?:$/.test(url.protocol))
    throw new WebhookError('url of a webhook is no https:// URL; give one with its host and path');
  if (url.protocol === 'http:' && !allowPrivate)
    throw new WebhookError(
      'url of a webhook is http, which anyone on the way can read; give https, or allowPrivate',
    );
  return url;
}

/** 24 to 64 bytes, as Standard Webhooks say. */
function demandSecrets(secrets: readonly string[]): void {
  const wrong = secrets.findIndex((secret) => {
    const bytes = Buffer.from(secret.replace(/^whsec_/, ''), 'base64').length;
    return !/^whsec_[A-Za-z0-9+/]+=*$/.test(secret) || bytes < 24 || bytes > 64;
  });
  if (wrong >= 0)
    throw new WebhookError(
      `secrets[${wrong}] of a webhook is none; allowed: whsec_ and 24 to 64 random bytes in base64`,
    );
}

// --- what is posted -----------------------------------------------------------------------------

interface Message {
  readonly url: URL;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

const shapes: Readonly<Record<WebhookShape, (run: RunRecord, url: URL) => Message>> = {
  standard: (run, url) => {
    const head = JSON.stringify({ type: `run.${run.status}`, timestamp: run.finishedAt ?? run.receivedAt });
    const body = `${head.slice(0, -1)},"data":${recordWithin(run, largest)}}`;
    return { url, headers: { 'content-type': 'application/json' }, body };
  },
  healthchecks: (run, url) => {
    const place = new URL(url);
    if (isWrong(run)) place.pathname = `${place.pathname.replace(/\/$/, '')}/fail`;
    place.searchParams.set('rid', run.id);
    return { url: place, headers: { 'content-type': 'text/plain; charset=utf-8' }, body: inWords(run) };
  },
  slack: (run, url) => ({
    url,
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ text: forSlack(run) }),
  }),
};

function isWrong({ status }: RunRecord): boolean {
  return status !== 'succeeded' && status !== 'skipped';
}

function inWords({ job, slot, status, skipReason, attempt, maxAttempts, error }: RunRecord): string {
  const reason = skipReason === null ? '' : ` (${skipReason})`;
  const which = attempt === null ? '' : `, attempt ${attempt}/${maxAttempts ?? attempt}`;
  const why = error === null ? '' : `: ${error.name}: ${error.message}`;
  return `${job} ${slot} ${status}${reason}${which}${why}`.slice(0, 2_000);
}

/** Three characters are Slack's own; what a stranger wrote shall mention nobody and link nowhere. */
function forSlack(run: RunRecord): string {
  const text = inWords(run).replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
  return `${isWrong(run) ? ':red_circle:' : ':white_check_mark:'} ${text}`;
}

/** The id is the run's, the same at each try: what arrives twice is told by it. */
async function signatures(
  secrets: readonly string[],
  id: string,
  body: string,
): Promise<Readonly<Record<string, string>>> {
  const at = new Date();
  const named = { 'webhook-id': id, 'webhook-timestamp': String(Math.floor(at.getTime() / 1_000)) };
  if (secrets.length === 0) return named;
  const { Webhook } = await import('standardwebhooks');
  const all = secrets.map((secret) => new Webhook(secret).sign(id, at, body));
  return { ...named, 'webhook-signature': all.join(' ') };
}

// --- how it gets there --------------------------------------------------------------------------

interface Letter extends Message {
  readonly allowPrivate: boolean;
  readonly signal: AbortSignal;
}

/** Why an outcome was not taken. Its code is what the other side answered, or why it was not even asked. */
class NotTaken extends Error {
  override readonly name = 'Error'; // so that the code is what is kept
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.code = code;
  }
}

async function deliver(letter: Letter, redirectsLeft: number): Promise<void> {
  const { url } = letter;
  const { statusCode: status = 0, headers } = await post(letter);
  if (status >= 200 && status < 300) return;
  if (status < 300 || status >= 400) throw new NotTaken(`HTTP ${status}`, 'the webhook did not take it');
  const place = headers.location ?? '';
  const next = URL.canParse(place, url.href) ? new URL(place, url.href) : null;
  // Only these two ask for the same request again; and nobody is handed a record but who was named.
  if (!/^30[78]$/.test(String(status)) || next === null)
    throw new NotTaken(`HTTP ${status}`, 'the webhook answers with a redirect that is none for a POST');
  if (next.origin !== url.origin)
    throw new NotTaken(`HTTP ${status}`, 'the webhook redirects to another host; name that one as its url');
  if (redirectsLeft === 0) throw new NotTaken(`HTTP ${status}`, 'the webhook redirects in a circle');
  await deliver({ ...letter, url: next }, redirectsLeft - 1);
}

/** Answers with the head of the response; what follows it is read by nobody. */
async function post({ url, headers, body, allowPrivate, signal }: Letter): Promise<IncomingMessage> {
  const host = url.hostname.replace(/^\[|\]$/g, '');
  if (!allowPrivate && isIP(host) !== 0 && isPrivate(host)) throw toPrivate();
  const options: RequestOptions = {
    method: 'POST',
    agent: false,
    headers: { ...headers, 'content-length': Buffer.byteLength(body), 'user-agent': 'cronce' },
    signal,
    ...(allowPrivate ? {} : { lookup: publicOnly }),
  };
  const send = url.protocol === 'https:' ? tlsRequest : plainRequest;
  return new Promise((answer, reject) => {
    const call = send(url, options, (response) => {
      answer(response);
      response.on('error', () => undefined); // of its end, which is ours
      call.destroy();
    });
    // A socket's own error says more than that the time was up, unless that is what it was.
    call.on('error', (error) => reject(signal.aborted ? (signal.reason as Error) : error));
    call.end(body);
  });
}

/** The addresses that were looked at are those that are connected to: a name can't come to mean another in between. */
const publicOnly: LookupFunction = (hostname, options, callback) => {
  resolve(hostname, { ...options, all: true }, (error, addresses) => {
    const refused = error ?? (addresses.some(({ address }) => isPrivate(address)) ? toPrivate() : null);
    const [first] = refused === null ? addresses : [];
    if (options.all === true) callback(refused, refused === null ? addresses : []);
    else callback(refused, first?.address ?? '', first?.family ?? 0);
  });
};

function toPrivate(): NotTaken {
  return new NotTaken(
    'PrivateAddress',
    'the webhook’s host has an address of a private network; allowPrivate lets it',
  );
}

/** What is not of the public Internet: IANA's special-purpose registries for IPv4 and IPv6, and multicast. */
const special = [
  '0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24',
  '192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4',
  '::/128 ::1/128 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 2002::/16 3fff::/20 5f00::/16 fc00::/7 fe80::/10 ff00::/8',
]
  .join(' ')
  .split(' ');

/** An IPv4 address inside an IPv6 one counts as what it is, and none where it is written in hexadecimal. */
function isPrivate(address: string): boolean {
  const bare = address.replace(/%.*$/, '').toLowerCase();
  const [translated, inside] = /^(?:::ffff:|64:ff9b::)(\d+\.\d+\.\d+\.\d+)?/.exec(bare) ?? [];
  if (translated !== undefined && inside === undefined) return true;
  const ip = inside ?? bare;
  return blocked().check(ip, isIP(ip) === 4 ? 'ipv4' : 'ipv6');
}

let list: BlockList | undefined;

/** Made when it is first asked for: a handler that posts nothing has none. */
function blocked(): BlockList {
  if (list !== undefined) return list;
  list = new BlockList();
  for (const net of special) {
    const [address = '', bits] = net.split('/');
    list.addSubnet(address, Number(bits), isIP(address) === 4 ? 'ipv4' : 'ipv6');
  }
  return list;
}
