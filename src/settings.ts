import { readFileSync } from 'node:fs';
import { X509Certificate } from 'node:crypto';
import * as v from 'valibot';
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

const wholeNumber = (least: number, most: number, why = '') => {
  const allowed = `a whole number from ${least} to ${most}${why}`;
  return v.pipe(
    v.string(),
    v.regex(/^\d+$/, allowed),
    v.transform(Number),
    v.minValue(least, allowed),
    v.maxValue(most, allowed),
  );
};

const list = v.pipe(
  v.string(),
  v.transform((text) =>
    text
      .split(',')
      .map((one) => one.trim())
      .filter(Boolean),
  ),
);

const tokens = v.pipe(
  list,
  v.everyItem((token) => token.length >= 16, 'tokens of at least 16 characters, separated by commas'),
);

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

/** An empty variable is an absent one: deployment templates can't leave one out. */
const shape = v.strictObject({
  DATABASE_URL: v.pipe(
    v.string('a postgres:// URL'),
    v.regex(/^postgres(ql)?:\/\//, 'a postgres:// URL'),
    v.rawCheck(({ dataset, addIssue }) => {
      const fault = dataset.typed ? faultOf(dataset.value) : undefined;
      if (fault !== undefined) addIssue({ message: `a postgres:// URL (${fault})` });
    }),
  ),
  CRONCE_DEPLOYMENT: v.optional(
    v.pipe(
      v.string(),
      v.regex(
        /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/,
        'letters, digits, dots, hyphens and underscores, 100 at most',
      ),
    ),
  ),
  CRONCE_DRIVER: v.optional(v.picklist(['pg', 'neon'], 'pg or neon')),
  CRONCE_NEON_RELAY: v.optional(v.string()),
  CRONCE_CONNECT_TIMEOUT_MS: v.optional(wholeNumber(100, 60_000)),
  CRONCE_LEASE_MS: v.optional(wholeNumber(2_000, 300_000)),
  CRONCE_LOG_LEVEL: v.optional(v.picklist(['DEBUG', 'INFO', 'WARN', 'ERROR'], 'DEBUG, INFO, WARN or ERROR')),
  CRONCE_JOB: v.optional(v.string()),
  CRONCE_WITHOUT_JOBS: v.optional(list),
  CRONCE_EVENT_BUS: v.optional(v.string()),
  CRONCE_EVENT_BUS_ENDPOINT: v.optional(v.pipe(v.string(), v.url('a URL'))),
  CRONCE_PUBLISH_TIMEOUT_MS: v.optional(wholeNumber(100, 20_000)),
  CRONCE_RETENTION_DAYS: v.optional(wholeNumber(14, 3_650, ' (a dead letter may wait for 14 days)')),
  CRONCE_READ_TOKENS: v.optional(tokens),
  CRONCE_RUN_TOKENS: v.optional(tokens),
  CRONCE_FUNCTION_PREFIX: v.optional(v.string()),
  CRONCE_LAMBDA_ENDPOINT: v.optional(v.pipe(v.string(), v.url('a URL'))),
});

const secret = new Set(['DATABASE_URL', 'CRONCE_READ_TOKENS', 'CRONCE_RUN_TOKENS']);

/** @throws {SettingsError} */
export function readSettings(environment: NodeJS.ProcessEnv = process.env): Settings {
  const given = Object.fromEntries(
    Object.entries(environment).filter(
      ([key, text]) => (key === 'DATABASE_URL' || key.startsWith('CRONCE_')) && text !== '',
    ),
  );
  const parsed = v.safeParse(shape, given);
  if (!parsed.success) throw refusal(parsed.issues[0], given);
  const env = parsed.output;
  return {
    target: targetOf(env),
    deployment: env.CRONCE_DEPLOYMENT ?? unnamedDeployment,
    leaseMs: env.CRONCE_LEASE_MS ?? 15_000,
    logLevel: env.CRONCE_LOG_LEVEL ?? 'INFO',
    ownJob: env.CRONCE_JOB ?? null,
    withoutJobs: env.CRONCE_WITHOUT_JOBS ?? [],
    eventBus:
      env.CRONCE_EVENT_BUS === undefined
        ? null
        : {
            bus: env.CRONCE_EVENT_BUS,
            ...(env.CRONCE_EVENT_BUS_ENDPOINT ? { endpoint: env.CRONCE_EVENT_BUS_ENDPOINT } : {}),
          },
    publishTimeoutMs: env.CRONCE_PUBLISH_TIMEOUT_MS ?? 2_000,
    retentionMs: (env.CRONCE_RETENTION_DAYS ?? 30) * 86_400_000,
    http: {
      readTokens: env.CRONCE_READ_TOKENS ?? [],
      runTokens: env.CRONCE_RUN_TOKENS ?? [],
      functionPrefix: env.CRONCE_FUNCTION_PREFIX ?? '',
      lambdaEndpoint: env.CRONCE_LAMBDA_ENDPOINT ?? null,
    },
  };
}

function refusal(issue: v.BaseIssue<unknown>, given: Record<string, unknown>): SettingsError {
  const key = String(issue.path?.[0]?.key);
  if (!(key in shape.entries))
    return new SettingsError(
      `${key} is no setting of Cronce; known: ${Object.keys(shape.entries).join(', ')}`,
    );
  if (given[key] === undefined) return new SettingsError(`${key} is not set; give a postgres:// URL`); // the only one needed
  const shown = secret.has(key) ? 'not one' : JSON.stringify(given[key]);
  return new SettingsError(`${key} is ${shown}; allowed: ${issue.message}`);
}

function targetOf(env: v.InferOutput<typeof shape>): Target {
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
