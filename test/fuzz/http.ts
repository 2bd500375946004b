/**
 * `npm run fuzz`: what a client sends never gives a 5xx, never hangs, and runs nothing without the scope. Slice by slice,
 * each with one token, over a server of Node's and, as events of each front, through Lambda's handler.
 *
 *     npm run fuzz                                   20,000 requests
 *     npm run fuzz -- --requests 1000 --seed 7       the same requests again
 */
import { once } from 'node:events';
import { createServer } from 'node:http';
import { connect, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { handler } from '../../functions/http.ts';
import { createApp } from '../../src/http/app.ts';
import { Refusals } from '../../src/http/refusals.ts';
import { Session } from '../../src/postgres/session.ts';
import { startPostgres } from '../../infra/local/postgres.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { serve } from '../support/node-server.ts';
import { jobs, silent } from '../support/runs.ts';
import { scratchFolder } from '../support/scratch.ts';
import { asEvent, fronts } from './events.ts';
import { drawRequests, type Drawn } from './requests.ts';

const tokens = { read: 'read-token-0123456789', run: 'run-token-0123456789+/=' } as const;
const callers = {
  run: tokens.run,
  read: tokens.read,
  wrong: 'wrong-token-0123456789',
  nobody: null,
} as const;
type Caller = keyof typeof callers;

export interface FuzzRequest {
  readonly seed: number;
  readonly requests: number;
  readonly atOnce: number;
  /** Of one request, ms. */
  readonly limitMs?: number;
}

export interface Fuzzed {
  /** How often each status was answered, by way and caller. */
  readonly statuses: ReadonlyMap<string, number>;
  /** How many runs were started. */
  readonly started: number;
  readonly broken: readonly string[];
}

interface Way {
  readonly name: string;
  readonly send: (request: Drawn, token: string | null) => Promise<number>;
}

const perSlice = 25;
const turns = ['run', 'read', 'run', 'wrong', 'run', 'nobody'] as const satisfies readonly Caller[];

/** Sets the environment that the handler reads. */
export async function fuzz(
  { seed, requests, atOnce, limitMs = 20_000 }: FuzzRequest,
  db: TestDatabase,
): Promise<Fuzzed> {
  const world = await openWorld(db);
  const statuses = new Map<string, number>();
  const broken: string[] = [];
  try {
    for (let slice = 0; slice * perSlice < requests; slice++) {
      const way = world.ways[slice % world.ways.length] as Way;
      const caller = turns[(slice + Math.floor(slice / world.ways.length)) % turns.length] ?? 'run';
      const before = await world.changes();
      const drawn = drawRequests(seed, slice, Math.min(perSlice, requests - slice * perSlice));
      await inParallel(drawn, atOnce, async (request) => {
        const status = await within(limitMs, way.send(request, callers[caller]));
        const of = `${way.name}, ${caller}: ${status}`;
        statuses.set(of, (statuses.get(of) ?? 0) + 1);
        if (typeof status === 'string' || status >= 500)
          broken.push(`slice ${slice}, ${of}: ${shown(request)}`);
      });
      const after = await world.changes();
      if (caller !== 'run' && after !== before)
        broken.push(`slice ${slice}: ${caller} changed ${before} to ${after}`);
    }
    return { statuses, broken, started: world.started() };
  } finally {
    await world.close();
  }
}

async function openWorld(db: TestDatabase) {
  let started = 0;
  const lambda = createServer((request, response) => {
    request.resume();
    started += 1;
    response.writeHead(202).end();
  }).listen(0, '127.0.0.1');
  await once(lambda, 'listening');
  const { port } = lambda.address() as AddressInfo;
  Object.assign(process.env, {
    DATABASE_URL: db.url,
    CRONCE_READ_TOKENS: tokens.read,
    CRONCE_RUN_TOKENS: tokens.run,
    CRONCE_LAMBDA_ENDPOINT: `http://127.0.0.1:${port}`,
    CRONCE_LOG_LEVEL: 'ERROR',
    POWERTOOLS_LOG_LEVEL: 'ERROR',
  });
  const server = await serve(appOn(db, () => void (started += 1)));
  const byServer: Way = {
    name: 'server',
    send: async (request, token) => overSocket(server.port, request, token),
  };
  const byEvent = fronts.map((front): Way => ({
    name: front,
    send: async (request, token) => (await handler(asEvent(front, request, token))).statusCode,
  }));
  return {
    // Half of it over the server.
    ways: byEvent.flatMap((way) => [byServer, way]),
    started: () => started,
    async changes() {
      const [row] = await db.query(`SELECT (SELECT count(*) FROM cronce.pause) AS pauses,
        (SELECT count(*) FROM cronce.pause WHERE resumed_at IS NULL) AS open, (SELECT count(*) FROM cronce.idempotency_key) AS keys`);
      return JSON.stringify({ ...row, started });
    },
    async close() {
      server.close();
      lambda.closeAllConnections();
      lambda.close();
      await delay(50);
    },
  };
}

function appOn(db: TestDatabase, onStart: () => void) {
  return createApp({
    registry: jobs,
    readTokens: [tokens.read],
    runTokens: [tokens.run],
    openSession: async () => Session.open({ url: db.url, driver: 'pg', connectTimeoutMs: 10_000 }),
    startRun: async () => onStart(),
    now: () => new Date(),
    logger: silent,
    refusals: new Refusals({ firstMs: 0 }),
  });
}

/** Byte by byte, since a client of Node's would send nothing odd. */
async function overSocket(port: number, request: Drawn, token: string | null): Promise<number> {
  const target = `${request.path}${request.query === '' ? '' : `?${request.query}`}`.replaceAll(
    /[\0-\x20]/g,
    '%20',
  );
  const lines = [
    `${request.method} ${target} HTTP/1.1`,
    'host: localhost',
    'connection: close',
    `content-length: ${request.body.length}`,
    ...request.headers.map(([name, value]) => `${name}: ${value}`),
    ...(token === null ? [] : [`authorization: Bearer ${token}`]),
  ];
  const socket = connect({ port, host: '127.0.0.1' });
  socket.on('error', () => undefined);
  socket.write(Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1'));
  socket.write(request.body);
  const answer = await buffer(socket);
  const [, status] = /^HTTP\/1\.1 (\d{3})/.exec(answer.toString('latin1')) ?? [];
  return status === undefined ? 0 : Number(status);
}

async function within(limitMs: number, answer: Promise<number>): Promise<number | string> {
  const timer = new AbortController();
  const late = delay(limitMs, 'no answer', { signal: timer.signal }).catch(() => 'no answer');
  return Promise.race([answer.catch((error: unknown) => `threw ${String(error)}`), late]).finally(() =>
    timer.abort(),
  );
}

async function inParallel<T>(
  all: readonly T[],
  atOnce: number,
  use: (one: T) => Promise<void>,
): Promise<void> {
  const left = all.values();
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      for (const one of left) await use(one);
    }),
  );
}

function shown({ body, ...request }: Drawn): string {
  return `${JSON.stringify(request)} ${JSON.stringify(Buffer.from(body.subarray(0, 300)).toString())}`;
}

export function tableOf({ statuses }: Fuzzed): string {
  return [...statuses]
    .sort()
    .map(([of, count]) => `${String(count).padStart(7)}  ${of}`)
    .join('\n');
}

async function main(): Promise<number> {
  const began = performance.now();
  const { values } = parseArgs({ options: { requests: { type: 'string' }, seed: { type: 'string' } } });
  const seed = Number(values.seed ?? (Date.now() % 999_999) + 1);
  const requests = Number(values.requests ?? 20_000);
  console.log(`${requests} requests, seed ${seed}`);
  const folder = await scratchFolder();
  const server = await startPostgres({
    dataDir: join(folder.path, 'server'),
    settings: { fsync: 'off', max_connections: '100' },
  });
  try {
    const db = await freshDatabase({ serverUrl: server.url });
    const fuzzed = await fuzz({ seed, requests, atOnce: 8 }, db);
    console.log(tableOf(fuzzed));
    for (const line of fuzzed.broken) console.log(line);
    const verdict = fuzzed.broken.length === 0 ? 'nothing broke' : `FAILED: ${fuzzed.broken.length}`;
    console.log(
      `${verdict}; ${fuzzed.started} runs started; seed ${seed}; ${Math.round((performance.now() - began) / 1_000)} s`,
    );
    await db.drop();
    return fuzzed.broken.length === 0 ? 0 : 1;
  } finally {
    await server.stop();
    await folder.remove();
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  process.exit(
    await main().catch((error: unknown) => {
      console.error(`fuzz: ${error instanceof Error ? error.message : String(error)}`);
      return 2;
    }),
  );
