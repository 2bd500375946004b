import { readFileSync } from 'node:fs';
import { X509Certificate } from 'node:crypto';
import { unnamedDeployment } from './run.ts';
import type { DriverName, Target } from './postgres/driver.ts';

/** What a deployment is told by its environment: read here and nowhere else, checked once. */
export interface Settings {
  readonly target: Target;
  /** Service and stage. What is recorded of jobs belongs to it, where several share a database. */
  readonly deployment: string;
  readonly leaseMs: number;
  readonly logLevel: 'DEBUG' | 'INFO' | 'WARN' | 'ERROR';
  /** The job that this function was deployed for. */
  readonly ownJob: string | null;
  /** Jobs of the registry that this deployment does not have. */
  readonly withoutJobs: readonly string[];
  readonly eventBus: { readonly bus: string; readonly endpoint?: string } | null;
  readonly publishTimeoutMs: number;
  /** At least the 14 days that a dead letter may wait: sent again, it must still find its slot's success. */
  readonly retentionMs: number;
  readonly http: {
    /** None at all: every route but /healthz refuses. */
    readonly readTokens: readonly string[];
    readonly runTokens: readonly string[];
    /** A job's function is named by this prefix and the job's name. */
    readonly functionPrefix: string;
    readonly lambdaEndpoint: string | null;
  };
}

/** A setting that is missing or can't be. One line: the key, what was given (never a secret), what is allowed. */
export class SettingsError extends Error {
  override readonly name = 'SettingsError';
}

/** Says in words what is allowed instead. */
class Refusal extends Error {}

type Reader<T> = (text: string) => T;

function wholeNumber(least: number, most: number, why = ''): Reader<number> {
  return (text) => {
    const number = /^\d+$/.test(text) ? Number(text) : NaN;
    if (number >= least && number <= most) return number;
    throw new Refusal(`a whole number from ${least} to ${most}${why}`);
  };
}

function matching(pattern: RegExp, allowed: string): Reader<string> {
  return (text) => {
    if (pattern.test(text)) return text;
    throw new Refusal(allowed);
  };
}

function oneOf<const T extends string>(all: readonly T[]): Reader<T> {
  return (text) => {
    const found = all.find((one) => one === text);
    if (found !== undefined) return found;
    throw new Refusal(`${all.slice(0, -1).join(', ')} or ${all.at(-1) ?? ''}`);
  };
}

const anyText: Reader<string> = (text) => text;

const url: Reader<string> = (text) => {
  if (URL.canParse(text)) return text;
  throw new Refusal('a URL');
};

const list: Reader<readonly string[]> = (text) =>
  text
    .split(',')
    .map((one) => one.trim())
    .filter(Boolean);

const tokens: Reader<readonly string[]> = (text) => {
  const all = list(text);
  if (all.every((token) => token.length >= 16)) return all;
  throw new Refusal('tokens of at least 16 characters, separated by commas');
};

const databaseUrl: Reader<string> = (text) => {
  if (!/^postgres(ql)?:\/\//.test(text)) throw new Refusal('a postgres:// URL');
  const fault = faultOf(text);
  if (fault === undefined) return text;
  throw new Refusal(`a postgres:// URL (${fault})`);
};

const sslModes = ['disable', 'prefer', 'require', 'verify-ca', 'verify-full', 'no-verify'];

/** What keeps a URL from being used, without a word of what it holds. */
function faultOf(text: string): string | undefined {
  const url = parsed(text);
  if (url === null || url.hash !== '' || / /.test(text.trim()) || endsEarly(url))
    return 'is a character in the password not percent-encoded?';
  const parts = { user: url.username, password: url.password, host: url.hostname, database: url.pathname };
  const wrong = Object.entries(parts).find(([, part]) => !isEncoded(part))?.[0];
  if (wrong !== undefined) return `the percent-encoding of the ${wrong} is wrong; a % itself is written %25`;
  const mode = url.searchParams.get('sslmode');
  if (mode !== null && !sslModes.includes(mode)) return `sslmode is one of ${sslModes.join(', ')}`;
  return faultOfFiles(url.searchParams);
}

/** Nobody logs in, but further on comes an @: a / or ? of the password has ended it. */
function endsEarly({ username, pathname, search, searchParams }: URL): boolean {
  return username === '' && !searchParams.has('user') && `${pathname}${search}`.includes('@');
}

/** Unix sockets have no host before the path, which WHATWG doesn't allow behind a user. */
function parsed(text: string): URL | null {
  const whole = text.replace(/^(postgres(?:ql)?:\/\/[^/?#]*@)\//, '$1socket/');
  return URL.canParse(whole) ? new URL(whole) : null;
}

/** UTF-8 in escapes, and no NUL, which would end the text early. */
function isEncoded(part: string): boolean {
  try {
    return !decodeURIComponent(part).includes('\0');
  } catch {
    return false;
  }
}

function faultOfFiles(given: URLSearchParams): string | undefined {
  for (const key of ['sslrootcert', 'sslcert', 'sslkey'])
    for (const file of given.getAll(key)) {
      const fault = faultOfPem(file, key === 'sslkey' ? 'PRIVATE KEY' : 'CERTIFICATE');
      if (fault !== undefined) return `${key} names ${JSON.stringify(file)}, ${fault}`;
    }
  return undefined;
}

function faultOfPem(file: string, kind: 'PRIVATE KEY' | 'CERTIFICATE'): string | undefined {
  try {
    const pem = readFileSync(file, 'utf8');
    if (!new RegExp(`-----BEGIN [A-Z ]*${kind}-----`).test(pem)) return `which holds no ${kind} in PEM`;
    if (kind === 'CERTIFICATE') new X509Certificate(pem);
    return undefined;
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' && file === 'system')
      return 'which is libpq’s word; leave it out for Node’s own CAs';
    return /^E[A-Z]+$/.test(code) ? `which can’t be read (${code})` : `which holds no ${kind} in PEM`;
  }
}

const readers = {
  DATABASE_URL: databaseUrl,
  CRONCE_DEPLOYMENT: matching(
    /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/,
    'letters, digits, dots, hyphens and underscores, 100 at most',
  ),
  CRONCE_DRIVER: oneOf(['pg', 'neon']),
  CRONCE_NEON_RELAY: anyText,
  CRONCE_CONNECT_TIMEOUT_MS: wholeNumber(100, 60_000),
  CRONCE_LEASE_MS: wholeNumber(2_000, 300_000),
  CRONCE_LOG_LEVEL: oneOf(['DEBUG', 'INFO', 'WARN', 'ERROR']),
  CRONCE_JOB: anyText,
  CRONCE_WITHOUT_JOBS: list,
  CRONCE_EVENT_BUS: anyText,
  CRONCE_EVENT_BUS_ENDPOINT: url,
  CRONCE_PUBLISH_TIMEOUT_MS: wholeNumber(100, 20_000),
  CRONCE_RETENTION_DAYS: wholeNumber(14, 3_650, ' (a dead letter may wait for 14 days)'),
  CRONCE_READ_TOKENS: tokens,
  CRONCE_RUN_TOKENS: tokens,
  CRONCE_FUNCTION_PREFIX: anyText,
  CRONCE_LAMBDA_ENDPOINT: url,
} satisfies Record<string, Reader<unknown>>;

type Key = keyof typeof readers;
type Read = { readonly [K in Key]?: ReturnType<(typeof readers)[K]> };

const secret = new Set(['DATABASE_URL', 'CRONCE_READ_TOKENS', 'CRONCE_RUN_TOKENS']);

/** @throws {SettingsError} */
export function readSettings(environment: NodeJS.ProcessEnv = process.env): Settings {
  const env = readAll(environment);
  return {
    target: targetOf(env),
    deployment: env.CRONCE_DEPLOYMENT ?? unnamedDeployment,
    leaseMs: env.CRONCE_LEASE_MS ?? 15_000,
    logLevel: env.CRONCE_LOG_LEVEL ?? 'INFO',
    ownJob: env.CRONCE_JOB ?? null,
    withoutJobs: env.CRONCE_WITHOUT_JOBS ?? [],
    eventBus: eventBusOf(env),
    publishTimeoutMs: env.CRONCE_PUBLISH_TIMEOUT_MS ?? 2_000,
    retentionMs: (env.CRONCE_RETENTION_DAYS ?? 30) * 86_400_000,
    http: httpOf(env),
  };
}

function eventBusOf({
  CRONCE_EVENT_BUS: bus,
  CRONCE_EVENT_BUS_ENDPOINT: endpoint,
}: Read): Settings['eventBus'] {
  if (bus === undefined) return null;
  return endpoint ? { bus, endpoint } : { bus };
}

function httpOf(env: Read): Settings['http'] {
  return {
    readTokens: env.CRONCE_READ_TOKENS ?? [],
    runTokens: env.CRONCE_RUN_TOKENS ?? [],
    functionPrefix: env.CRONCE_FUNCTION_PREFIX ?? '',
    lambdaEndpoint: env.CRONCE_LAMBDA_ENDPOINT ?? null,
  };
}

/** An empty variable is an absent one: deployment templates can't leave one out. */
function readAll(environment: NodeJS.ProcessEnv): Read & { readonly DATABASE_URL: string } {
  if (!environment['DATABASE_URL'])
    throw new SettingsError('DATABASE_URL is not set; give a postgres:// URL');
  const read = Object.fromEntries(
    Object.entries(readers).flatMap(([key, reader]) => {
      const text = environment[key];
      return text ? [[key, readOne(key, reader, text)]] : [];
    }),
  ) as Read & { readonly DATABASE_URL: string };
  const known = Object.keys(readers);
  for (const [key, text] of Object.entries(environment))
    if (key.startsWith('CRONCE_') && text && !known.includes(key))
      throw new SettingsError(`${key} is no setting of Cronce; known: ${known.join(', ')}`);
  return read;
}

function readOne(key: string, reader: Reader<unknown>, text: string): unknown {
  try {
    return reader(text);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    const shown = secret.has(key) ? 'not one' : JSON.stringify(text);
    throw new SettingsError(`${key} is ${shown}; allowed: ${error.message}`);
  }
}

function targetOf(env: ReturnType<typeof readAll>): Target {
  const host = parsed(env.DATABASE_URL)?.hostname ?? '';
  const relay = env.CRONCE_NEON_RELAY;
  const onNeon = host.endsWith('.neon.tech') || relay !== undefined;
  const driver: DriverName = env.CRONCE_DRIVER ?? (onNeon ? 'neon' : 'pg');
  return {
    url: env.DATABASE_URL,
    driver,
    connectTimeoutMs: env.CRONCE_CONNECT_TIMEOUT_MS ?? 5_000,
    applicationName: `cronce:${env.CRONCE_JOB ?? 'http'}`,
    ...(relay !== undefined && driver === 'neon' ? { relay } : {}),
  };
}
