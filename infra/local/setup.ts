/**
 * The whole coordinator on this machine: PostgreSQL with its schema, the relay where the Neon driver needs one, and
 * the built handlers under serverless-offline. `npm start` adds a clock to it, `npm run duplicates` a burst of
 * deliveries; nothing of it runs a job by itself.
 */
import { randomBytes } from 'node:crypto';
import { once, setMaxListeners } from 'node:events';
import { createWriteStream } from 'node:fs';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import pg from 'pg';
import type { Job } from '../../src/job.ts';
import type { DriverName } from '../../src/postgres/driver.ts';
import { typed } from '../../src/postgres/errors.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';
import { readSettings, SettingsError, type Settings } from '../../src/settings.ts';
import { build, BuildError } from '../build.ts';
import { writeNew } from '../files.ts';
import { migrate, MigrationError } from '../migrate.ts';
import { exampleMigrationsOf, ProjectError, serviceOf, type Project } from '../project.ts';
import { settleLeftovers } from './leftovers.ts';
import {
  invoke,
  isListening,
  OfflineError,
  startOffline,
  type Answer,
  type InvocationType,
  type Offline,
} from './offline.ts';
import { LocalPostgresError, startPostgres } from './postgres.ts';
import { RelayError, startRelay } from './relay.ts';
import { admit, makeRole, urlFor, type Role } from './role.ts';

const stage = 'local';

/** Where a project keeps its local set-up, unless that is said. */
export function localFolderOf(root: string): string {
  return join(root, '.cronce');
}

export interface LocalOptions {
  readonly project: Project;
  readonly httpPort: number;
  readonly lambdaPort: number;
  /** Keeps the database, the tokens and the logs. */
  readonly folder: string;
  /** By CRONCE_DRIVER or the URL if not given, so `pg` for a local server. */
  readonly driver?: DriverName;
  /** DATABASE_URL and CRONCE_* of it count as they do when deployed. */
  readonly environment: NodeJS.ProcessEnv;
  /** Whether a database of one's own, DATABASE_URL, gets the tables of the example jobs; without them these are left out. */
  readonly examples?: boolean;
  /** The times before retries are divided by this; default 1. */
  readonly speed?: number;
  /** Gives up between two parts. */
  readonly signal?: AbortSignal;
}

/** How to reach a local set-up, from this process or another. */
export interface LocalAddress {
  readonly url: string;
  readonly lambdaPort: number;
  /** Of the project: functions are called after it. */
  readonly service: string;
  readonly databaseUrl: string;
  readonly driver: DriverName;
}

export interface Local extends LocalAddress {
  readonly tokens: Tokens;
  readonly deployment: string;
  /** All that is delivered, the sweep among them. */
  readonly jobs: readonly Job[];
  readonly database: DatabaseState;
  /** Runs that were cut off when the last one ended, settled now. */
  readonly leftovers: readonly RunRecord[];
  /** Aborts when serverless-offline has ended by itself. */
  readonly ended: AbortSignal;
  stop(): Promise<void>;
}

/** What was found and done. */
export interface DatabaseState {
  /** It is kept in the folder, and nobody else's. */
  readonly isOurs: boolean;
  /** It has the tables of the example jobs. */
  readonly examples: boolean;
  /** Migrations that were applied. */
  readonly applied: readonly string[];
  /** Example jobs that it has no tables for. */
  readonly leftOut: readonly string[];
}

export interface Tokens {
  readonly run: string;
  readonly read: string;
}

/** A part that could not be started. Its message is one line: which, why, and what to do. */
export class LocalError extends Error {
  override readonly name = 'LocalError';
}

/** @throws {LocalError} with everything stopped again */
export async function startLocal(options: LocalOptions): Promise<Local> {
  const parts = new Parts(options.signal);
  try {
    return await assemble(options, parts);
  } catch (error) {
    await parts.stop();
    throw error;
  }
}

/** Aborts when we are asked to end. Further signals change nothing: with the parts in the middle of stopping, leaving them would leave orphans. */
export function untilSignalled(): AbortSignal {
  const asked = new AbortController();
  setMaxListeners(0, asked.signal); // each delivery under way listens
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => asked.abort());
  return asked.signal;
}

/** Delivers an event to a job's function. */
export async function deliver(
  to: LocalAddress,
  job: string,
  event: unknown,
  { type, signal }: { type?: InvocationType; signal?: AbortSignal } = {},
): Promise<Answer> {
  return invoke(to.lambdaPort, `${to.service}-${stage}-${job}`, event, type, signal);
}

async function assemble(options: LocalOptions, parts: Parts): Promise<Local> {
  const { project, folder, httpPort, lambdaPort, environment } = options;
  const service = await parts.start('project', async () => serviceOf(project.root));
  const deployment = environment['CRONCE_DEPLOYMENT'] || `${service}-${stage}`;
  const isOurs = !environment['DATABASE_URL'];
  await prepare(options, parts);
  const tokens = await parts.start('tokens', async () => keptTokens(folder));
  const databaseUrl =
    environment['DATABASE_URL'] || (await parts.start('PostgreSQL', async () => ownDatabase(folder, parts)));
  await parts.start('database', async () => demandDatabase(databaseUrl));
  const { driver, relay } = await parts.start('relay', async () => reachable(databaseUrl, options, parts));
  const examples = options.examples ?? isOurs;
  const applied = await parts.start('migrations', async () =>
    migrate(databaseUrl, { ...(examples && { examples: exampleMigrationsOf(project.root) }), deployment }),
  );
  if (isOurs) await parts.start('database', async () => startAfresh(databaseUrl, deployment));
  const leftovers = await parts.start('database', async () =>
    settleLeftovers({ databaseUrl, deployment, isOurs }),
  );
  const leftOut = examples ? [] : project.exampleNames;
  const without = [environment['CRONCE_WITHOUT_JOBS'] ?? '', ...leftOut].filter(Boolean).join(',');
  const handlers = {
    ...handlersEnvironment(options, { databaseUrl, driver, relay, tokens }),
    CRONCE_WITHOUT_JOBS: without,
  };
  const offline = await parts.start('serverless-offline', async () => emulate(options, handlers, parts));
  const address = { url: `http://localhost:${httpPort}`, lambdaPort, service, databaseUrl, driver };
  await publish(folder, address, parts);
  return {
    ...address,
    tokens,
    deployment,
    jobs: project.jobs.filter(({ name }) => !without.split(',').includes(name)),
    database: { isOurs, examples, applied, leftOut },
    leftovers,
    ended: offline.ended,
    stop: async () => parts.stop(),
  };
}

/** All that can be found wrong before anything is started. */
async function prepare(options: LocalOptions, parts: Parts): Promise<void> {
  const { folder, httpPort, lambdaPort, environment } = options;
  const url = environment['DATABASE_URL'] || 'postgres://made-below';
  await parts.start('settings', async () => settingsWith(url, options));
  await parts.start('ports', async () => demandPorts(httpPort, lambdaPort));
  await parts.start('folder', async () => makeFolder(folder));
  await parts.start('build', async () => build(options.project.root));
}

/** With passwords and tokens in it, it is nobody's to commit. */
async function makeFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  await writeNew(join(folder, '.gitignore'), '*\n');
}

async function emulate(
  options: LocalOptions,
  environment: NodeJS.ProcessEnv,
  parts: Parts,
): Promise<Offline> {
  const { project, httpPort, lambdaPort, folder, signal, speed = 1 } = options;
  const { root } = project;
  const logFile = join(folder, 'offline.log');
  const offline = await startOffline({
    root,
    httpPort,
    lambdaPort,
    stage,
    logFile,
    environment,
    speed,
    signal,
  });
  parts.stopLater(async () => offline.stop());
  return offline;
}

/** What has been started, to be stopped in the reverse order. */
class Parts {
  readonly #stops: (() => Promise<unknown>)[] = [];
  readonly #signal: AbortSignal | undefined;

  constructor(signal: AbortSignal | undefined) {
    this.#signal = signal;
  }

  async start<T>(part: string, begin: () => Promise<T>): Promise<T> {
    this.#signal?.throwIfAborted();
    return begin().catch((cause: unknown) => {
      this.#signal?.throwIfAborted();
      throw new LocalError(`${part}: ${oneLine(cause)}`, { cause });
    });
  }

  stopLater(stop: () => Promise<unknown>): void {
    this.#stops.push(stop);
  }

  async stop(): Promise<void> {
    for (let stop = this.#stops.pop(); stop !== undefined; stop = this.#stops.pop())
      await stop().catch(() => undefined);
  }
}

/** Errors that are made to be read are shown as they are, and a driver's with its meaning and cure. */
const plainErrors = [
  LocalPostgresError,
  RelayError,
  OfflineError,
  BuildError,
  MigrationError,
  ProjectError,
  SettingsError,
  LocalError,
];

function oneLine(error: unknown): string {
  return messageOf(error).split('\n', 1).join();
}

function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return typed(error).message;
  if (plainErrors.some((kind) => error instanceof kind)) return error.message;
  return 'path' in error ? `${error.message}: check who owns it` : typed(error).message;
}

// --- ports --------------------------------------------------------------------------------------

async function demandPorts(httpPort: number, lambdaPort: number): Promise<void> {
  await demandPort(httpPort, 'HTTP', '--port');
  await demandPort(lambdaPort, 'the Lambda API', '--lambda-port');
}

async function demandPort(port: number, purpose: string, flag: string): Promise<void> {
  const listener = createServer().listen(port, '127.0.0.1');
  try {
    await once(listener, 'listening');
  } catch (cause) {
    throw portError(port, purpose, flag, cause);
  } finally {
    listener.close();
  }
  // Clients that take `localhost` for ::1 would speak to whoever is there.
  if (await isListening(port, '::1')) throw portError(port, purpose, flag);
}

function portError(port: number, purpose: string, flag: string, cause?: unknown): LocalError {
  const code = cause instanceof Error && 'code' in cause ? cause.code : 'EADDRINUSE';
  const what =
    code === 'EADDRINUSE' ? 'is in use: stop what uses it, or' : `can't be used (${String(code)}):`;
  return new LocalError(`port ${port}, wanted for ${purpose}, ${what} choose another with ${flag}`, {
    cause,
  });
}

// --- database -----------------------------------------------------------------------------------

async function ownDatabase(folder: string, parts: Parts): Promise<string> {
  const log = createWriteStream(join(folder, 'postgres.log'), { flags: 'w', mode: 0o600 });
  await once(log, 'open');
  const server = await startPostgres({
    dataDir: join(folder, 'postgres'),
    // A burst of duplicates takes a connection each.
    settings: { max_connections: '300' },
    log: (line) => log.write(`${line}\n`),
  });
  parts.stopLater(async () => server.stop().finally(() => log.end()));
  return ordinaryDatabase(server.url);
}

/** As in the field, so that nothing works here alone: an ordinary role in a database of its own. */
async function ordinaryDatabase(serverUrl: string): Promise<string> {
  const role: Role = { name: 'cronce', password: randomBytes(18).toString('base64url') };
  const server = new pg.Client({ connectionString: serverUrl, application_name: 'cronce:local' });
  server.on('error', () => undefined); // the failing query says it
  await server.connect();
  try {
    await makeRole(server, role);
    const known = await server.query('SELECT 1 FROM pg_database WHERE datname = $1', [role.name]);
    if (known.rowCount === 0) await server.query(`CREATE DATABASE ${role.name}`);
    await admit(server, role, role.name);
  } finally {
    await server.end();
  }
  return urlFor(serverUrl, role, role.name);
}

/** While nothing ran here, nothing was due: what has passed since the last time would else be hundreds of missed slots. */
async function startAfresh(databaseUrl: string, deployment: string): Promise<void> {
  const session = await Session.open({ url: databaseUrl, driver: 'pg', connectTimeoutMs: 5_000 });
  await session.send(
    `SELECT cronce.forget_schedule(s.job, s.expression, s.time_zone, s.deployment, s.starts_at, s.ends_at)
     FROM cronce.schedule s WHERE s.deployment = ${session.literal(deployment)}`,
  );
  await session.close();
}

/** @throws {PostgresError} that says why not, and what to do */
async function demandDatabase(url: string): Promise<void> {
  const session = await Session.open({ url, driver: 'pg', connectTimeoutMs: 10_000 });
  await session.close();
}

interface Way {
  readonly driver: DriverName;
  readonly relay: string | undefined;
}

/** The Neon driver speaks WebSocket; before a server that does not, it takes a relay. */
async function reachable(databaseUrl: string, options: LocalOptions, parts: Parts): Promise<Way> {
  const { target } = settingsWith(databaseUrl, options);
  const { hostname, port } = new URL(databaseUrl);
  if (target.driver !== 'neon' || target.relay !== undefined || hostname.endsWith('.neon.tech'))
    return { driver: target.driver, relay: target.relay };
  const relay = await startRelay({ allow: [`${hostname}:${port || '5432'}`] });
  parts.stopLater(async () => relay.stop());
  return { driver: 'neon', relay: relay.wsProxy };
}

/** @throws {SettingsError} */
function settingsWith(databaseUrl: string, { driver, environment }: LocalOptions): Settings {
  const wanted = driver === undefined ? {} : { CRONCE_DRIVER: driver };
  return readSettings({ ...environment, ...wanted, DATABASE_URL: databaseUrl });
}

// --- handlers -----------------------------------------------------------------------------------

interface HandlersOptions extends Way {
  readonly databaseUrl: string;
  readonly tokens: Tokens;
}

function handlersEnvironment(
  { environment, lambdaPort }: LocalOptions,
  given: HandlersOptions,
): NodeJS.ProcessEnv {
  return {
    ...environment,
    DATABASE_URL: given.databaseUrl,
    CRONCE_DRIVER: given.driver,
    CRONCE_NEON_RELAY: given.relay ?? '',
    CRONCE_RUN_TOKENS: given.tokens.run,
    CRONCE_READ_TOKENS: given.tokens.read,
    CRONCE_LAMBDA_ENDPOINT: `http://127.0.0.1:${lambdaPort}`,
  };
}

/** Made once, so that a command in the shell's history goes on working. */
async function keptTokens(folder: string): Promise<Tokens> {
  const [run, read] = await Promise.all(
    ['token', 'read-token'].map(async (name) => keptToken(join(folder, name))),
  );
  return { run: run ?? '', read: read ?? '' };
}

async function keptToken(file: string): Promise<string> {
  const kept = await readFile(file, 'utf8').catch(() => '');
  if (kept.length >= 16) return kept.trim();
  const token = randomBytes(18).toString('base64url');
  await writeFile(file, token, { mode: 0o600 });
  return token;
}

// --- being found --------------------------------------------------------------------------------

interface Found extends LocalAddress {
  readonly pid: number;
}

async function publish(folder: string, address: LocalAddress, parts: Parts): Promise<void> {
  const file = join(folder, 'local.json');
  const found: Found = { pid: process.pid, ...address };
  // With the database's password in it, hence the mode.
  await writeFile(file, JSON.stringify(found), { mode: 0o600 });
  parts.stopLater(async () => rm(file, { force: true }));
}

/** The set-up that runs in a folder, if one does. */
export async function findLocal(folder: string): Promise<LocalAddress | undefined> {
  const found = await readFile(join(folder, 'local.json'), 'utf8').then(
    (text) => JSON.parse(text) as Found,
    () => undefined,
  );
  if (found === undefined || !isAlive(found.pid)) return undefined;
  return (await isListening(found.lambdaPort)) ? found : undefined;
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
