import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { startPostgres } from './local/postgres.ts';
import { migrate } from './migrate.ts';

/**
 * The coordinator's schema as the database itself describes it, in a fixed order: what all migrations together amount
 * to. Committed as infra/schema.sql, so that a change of the schema shows in review; a test compares the two.
 */
export async function dumpSchema(url: string): Promise<string> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    // How names, times and numbers are written depends on the session.
    await client.query(
      `SET search_path = pg_catalog; SET quote_all_identifiers = off; SET DateStyle = 'ISO, YMD';
       SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC'; SET extra_float_digits = 1; SET bytea_output = 'hex'`,
    );
    const { rows } = await client.query<{ line: string }>(description);
    return `${rows.map(({ line }) => line).join('\n')}\n`;
  } finally {
    await client.end();
  }
}

const description = `
  WITH relation AS (
    SELECT c.oid, c.relname, c.relkind FROM pg_class c WHERE c.relnamespace = 'cronce'::regnamespace AND c.relkind = 'r'),
  part (class, name, position, line) AS (
    SELECT 1, relname, 0, format(E'\\nTABLE cronce.%s', relname) FROM relation
    UNION ALL
    SELECT 1, r.relname, a.attnum, format('  %s %s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
        CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END, ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid))
      FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum
    UNION ALL
    SELECT 2, r.relname || '.' || k.conname, 0, format('CONSTRAINT %s.%s %s', r.relname, k.conname, pg_get_constraintdef(k.oid))
      FROM relation r JOIN pg_constraint k ON k.conrelid = r.oid AND k.contype <> 'n'
    UNION ALL
    SELECT 3, indexrelid::regclass::text, 0, pg_get_indexdef(indexrelid)
      FROM relation r JOIN pg_index i ON i.indrelid = r.oid
    UNION ALL
    SELECT 4, p.oid::regprocedure::text, 0, E'\\n' || pg_get_functiondef(p.oid)
      FROM pg_proc p WHERE p.pronamespace = 'cronce'::regnamespace)
  SELECT rtrim(line) AS line FROM part ORDER BY class, name COLLATE "C", position`;

/** `npm run schema`: writes infra/schema.sql from a new database with all migrations. */
async function main(): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'cronce-schema-'));
  const postgres = await startPostgres({ dataDir: join(folder, 'server'), settings: { fsync: 'off' } });
  try {
    await migrate(postgres.url);
    await writeFile(new URL('./schema.sql', import.meta.url), await dumpSchema(postgres.url));
  } finally {
    await postgres.stop();
    await rm(folder, { recursive: true, force: true });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
