import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { watchAttempt, type DriverClient } from '../src/postgres/driver.ts';
import { cannotConnect } from '../src/postgres/errors.ts';

/**
 * Applies infra/migrations/NNNN_name.sql in order, each once, all in one transaction under a transaction advisory
 * lock: any number may start at once, one does the work, the others wait and find it done.
 *
 * The functions in infra/sql, one a file, are laid anew in the same transaction whenever one has changed.
 *
 * A migration whose first line is `-- compatible` lets code written before it go on; any other locks that code out
 * (`cronce.require_schema`). `examples` is a folder of more such: the tables of jobs that show how it is done.
 */

const folder = fileURLToPath(new URL('./migrations/', import.meta.url));
const functionsFolder = fileURLToPath(new URL('./sql/', import.meta.url));

const connectTimeoutMs = 10_000;

/** 'cronce' read as a number; any constant would do, as long as it stays. */
const migrationLock = 0x63726f6e6365n;

export class MigrationError extends Error {
  override readonly name = 'MigrationError';
}

interface Migration {
  readonly version: number;
  readonly name: string;
  readonly sql: string;
}

export interface MigrateOptions {
  /** A folder. */
  readonly examples?: string | undefined;
  /** Whose runs those of before are, where a database goes forward that knew of no deployments. */
  readonly deployment?: string | undefined;
  readonly log?: (line: string) => void;
}

/**
 * @returns the names of the migrations that were applied
 * @throws {MigrationError} where the database is newer than this code, or has runs of nobody knows which deployment
 * @throws {CannotConnect | AccessRefused}
 */
export async function migrate(
  url: string,
  { examples, deployment, log = () => undefined }: MigrateOptions = {},
): Promise<string[]> {
  const client = new pg.Client({
    connectionString: url,
    connectionTimeoutMillis: connectTimeoutMs,
    application_name: 'cronce:migrate',
  });
  client.on('error', () => undefined); // the failing query says it
  try {
    await connect(client, url);
    await client.query('BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE, NOT DEFERRABLE');
    await client.query(
      `SELECT set_config(s.name, w.value, true)
       FROM pg_settings s JOIN jsonb_each_text($1) w ON lower(w.key) = lower(s.name)`,
      [JSON.stringify(settings)],
    );
    await client.query(`SELECT set_config('cronce.deployment', $1, true)`, [deployment ?? '']);
    await client.query('SELECT pg_advisory_xact_lock($1)', [migrationLock.toString()]);
    await client.query(ledger);
    if (deployment === undefined) await demandNoRunsOfBefore(client);
    const applied = [
      ...(await apply(client, 'cronce.migration', await read(folder), log)),
      ...(await layFunctions(client, log)),
      ...(examples === undefined ? [] : await applyExamples(client, examples, log)),
    ];
    const { command } = await client.query('COMMIT');
    if (command !== 'COMMIT') throw new MigrationError('the migrations were rolled back');
    return applied;
  } finally {
    await client.end().catch(() => undefined);
  }
}

/** What keeps us from it is said as everywhere, with its cure. */
async function connect(client: pg.Client, url: string): Promise<void> {
  const target = { url, driver: 'pg', connectTimeoutMs } as const;
  const attempt = watchAttempt(client as unknown as DriverClient, target);
  await client.connect().catch((cause: unknown) => {
    throw cannotConnect(cause, attempt());
  });
}

/**
 * A deployment that does not find its history runs late duplicates again, forgets its pauses and owes nothing: to guess
 * whose it is would be found out only then.
 */
async function demandNoRunsOfBefore(client: pg.Client): Promise<void> {
  const { rows } = await client.query(
    `SELECT FROM pg_class c WHERE c.oid = to_regclass('cronce.run') AND NOT EXISTS (
       SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'deployment')`,
  );
  if (rows.length === 0) return;
  const runs = await client.query('SELECT FROM cronce.run UNION ALL SELECT FROM cronce.job LIMIT 1');
  if (runs.rows.length > 0)
    throw new MigrationError(
      'the database has runs, and from this version on each belongs to a deployment; say to which: ' +
        'CRONCE_DEPLOYMENT=<service>-<stage> npm run migrate',
    );
}

/**
 * A migration means the same in every database, whatever this or the role has for defaults, and takes the time it takes;
 * only a wait for a lock has a limit. What the server does not know (transaction_timeout, before 17) is passed over.
 */
const settings: Readonly<Record<string, string>> = {
  lock_timeout: '60s',
  statement_timeout: '0',
  transaction_timeout: '0',
  idle_in_transaction_session_timeout: '0',
  search_path: 'pg_catalog, pg_temp',
  DateStyle: 'ISO, YMD',
  IntervalStyle: 'postgres',
  TimeZone: 'UTC',
  check_function_bodies: 'on',
  transform_null_equals: 'off',
  array_nulls: 'on',
  synchronous_commit: 'on',
  row_security: 'on',
};

const ledger = `
  DO $$ BEGIN
    IF to_regnamespace('cronce') IS NULL THEN -- asked first: IF NOT EXISTS would want the right to make it all the same
      CREATE SCHEMA cronce;
    END IF;
  END $$;
  CREATE TABLE IF NOT EXISTS cronce.migration (
    version integer PRIMARY KEY, name text NOT NULL,
    breaking boolean NOT NULL DEFAULT true, applied_at timestamptz NOT NULL DEFAULT clock_timestamp());
  CREATE TABLE IF NOT EXISTS cronce.example_migration (LIKE cronce.migration INCLUDING ALL);`;

/** Creates or replaces every function, and drops what no file declares any more. */
async function layFunctions(client: pg.Client, log: (line: string) => void): Promise<string[]> {
  const files = (await readdir(functionsFolder)).filter((file) => file.endsWith('.sql')).sort();
  const texts = await Promise.all(files.map((file) => readFile(join(functionsFolder, file), 'utf8')));
  const hash = createHash('sha256').update(texts.join('\0')).digest('hex');
  const { rowCount } = await client.query('SELECT FROM cronce.laid WHERE hash = $1', [hash]);
  if (rowCount === 1) return [];
  // They call each other: only once all are there can their bodies be checked.
  for (const check of ['off', 'on']) {
    await client.query(`SET LOCAL check_function_bodies = ${check}`);
    for (const [index, sql] of texts.entries())
      await client.query(sql).catch((cause: unknown) => {
        throw new MigrationError(
          `function ${files[index]} failed, and nothing was changed: ${String(cause)}`,
          {
            cause,
          },
        );
      });
  }
  await client.query(dropUndeclared);
  await client.query(
    'INSERT INTO cronce.laid (hash) VALUES ($1) ON CONFLICT (one) DO UPDATE SET hash = $1, at = clock_timestamp()',
    [hash],
  );
  log('laid the functions');
  return ['functions'];
}

/** All that are declared were just written by this transaction, so whatever was not is of before. */
const dropUndeclared = `
  DO $$
  DECLARE
    old text;
  BEGIN
    SELECT string_agg(p.oid::regprocedure::text, ', ') INTO old FROM pg_proc p
      WHERE p.pronamespace = 'cronce'::regnamespace AND p.xmin::text::bigint <> pg_current_xact_id()::text::bigint % 4294967296;
    IF old IS NOT NULL THEN
      EXECUTE 'DROP FUNCTION ' || old;
    END IF;
  END $$`;

async function apply(
  client: pg.Client,
  table: string,
  all: readonly Migration[],
  log: (line: string) => void,
): Promise<string[]> {
  const { rows } = await client.query<{ version: number; name: string }>(
    `SELECT version, name FROM ${table}`,
  );
  refuseNewer(rows, all);
  const present = new Set(rows.map(({ version }) => version));
  const missing = all.filter(({ version }) => !present.has(version));
  for (const { version, name, sql } of missing) {
    await client.query(sql).catch((cause: unknown) => {
      throw new MigrationError(`migration ${name} failed, and nothing was changed: ${String(cause)}`, {
        cause,
      });
    });
    const breaking = !sql.startsWith('-- compatible');
    await client.query(`INSERT INTO ${table} (version, name, breaking) VALUES ($1, $2, $3)`, [
      version,
      name,
      breaking,
    ]);
    log(`applied ${name}`);
  }
  return missing.map(({ name }) => name);
}

function refuseNewer(rows: readonly { version: number; name: string }[], known: readonly Migration[]): void {
  const stranger = rows.find(({ version }) => !known.some((migration) => migration.version === version));
  if (!stranger) return;
  throw new MigrationError(
    `the database has migration ${stranger.version} (${stranger.name}), which this code does not know: deploy the newer Cronce`,
  );
}

/** None where their folder is gone, which goes when the jobs do, whatever tables they have left. */
async function applyExamples(
  client: pg.Client,
  from: string,
  log: (line: string) => void,
): Promise<string[]> {
  const examples = await read(from).catch((error: unknown) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  });
  return examples.length === 0 ? [] : apply(client, 'cronce.example_migration', examples, log);
}

async function read(from: string): Promise<Migration[]> {
  const files = (await readdir(from)).filter((file) => /^\d{4}_.+\.sql$/.test(file)).sort();
  return Promise.all(
    files.map(async (file) => ({
      version: Number(file.slice(0, 4)),
      name: basename(file, '.sql'),
      sql: await readFile(join(from, file), 'utf8'),
    })),
  );
}
