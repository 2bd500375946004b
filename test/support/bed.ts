/**
 * What the database is to us in the field: somebody else's. The code under test has an ordinary role, and each database
 * has defaults that nobody here would have chosen, though each is one that somebody has.
 */
import { createHash } from 'node:crypto';
import type pg from 'pg';
import { admit, makeRole, type Role } from '../../infra/local/role.ts';

/** As ALTER DATABASE … SET takes them. Where a server is too old for one, that one is left out. */
const oddDefaults: Readonly<Record<string, string>> = {
  // How values are written and read.
  DateStyle: `'German, DMY'`,
  IntervalStyle: `'sql_standard'`,
  TimeZone: `'Asia/Kathmandu'`, // 5 h 45 min from UTC: neither the hour nor the minute is ours
  bytea_output: `'escape'`,
  extra_float_digits: '0',
  xmloption: `'document'`,
  xmlbinary: `'hex'`,
  array_nulls: 'off',
  transform_null_equals: 'on',
  quote_all_identifiers: 'on',
  client_encoding: `'LATIN1'`,
  // standard_conforming_strings stays on: without it every backslash in anyone's SQL means something else, drivers'
  // included, and newer servers refuse to turn it off.
  // Where names are looked for: in a schema that isn't there, and in one where we own nothing.
  search_path: 'odd, public',
  check_function_bodies: 'off',
  // Time limits. Each is shorter than a lease, an invocation or a wait of ours may be.
  statement_timeout: `'20s'`,
  lock_timeout: `'3s'`,
  idle_in_transaction_session_timeout: `'4s'`,
  idle_session_timeout: `'30s'`,
  transaction_timeout: `'25s'`,
  // Transactions.
  default_transaction_isolation: `'serializable'`,
  default_transaction_deferrable: 'on',
  synchronous_commit: 'off',
  // How statements are planned.
  plan_cache_mode: `'force_generic_plan'`,
  jit: 'off',
};

/** The role of the code under test. Random like the server's own password, and known to each worker of a test run. */
export function ordinaryRole(serverUrl: string): Role {
  const { password } = new URL(serverUrl);
  return {
    name: 'cronce_test',
    password: createHash('sha256').update(`ordinary ${password}`).digest('base64url'),
  };
}

/** Lets the role into a database, and gives this its defaults: a clone keeps neither from its template. */
export async function layBed(server: pg.Client, role: Role, database: string): Promise<void> {
  await makeRole(server, role);
  // Not even temporary tables: some take that away from everyone.
  await server.query(`REVOKE ALL ON DATABASE ${database} FROM PUBLIC`);
  await admit(server, role, database);
  const { rows } = await server.query<{ name: string }>('SELECT name FROM pg_settings');
  const known = new Set(rows.map(({ name }) => name));
  for (const [name, value] of Object.entries(oddDefaults))
    if (known.has(name)) await server.query(`ALTER DATABASE ${database} SET ${name} = ${value}`);
}

/** For sessions of the tests themselves: takes back what the database has set. */
export async function setPlain(session: pg.ClientBase): Promise<void> {
  await session.query(
    `SELECT set_config(name, boot_val, false) FROM pg_settings
     WHERE source = 'database' AND context IN ('user', 'superuser')`,
  );
}

/** For tests whose tables the superuser makes: the ordinary role may use what is in `public`, and make tables there. */
export function openPublic(database: string): string {
  return `GRANT ALL ON SCHEMA public TO PUBLIC; GRANT TEMP ON DATABASE ${database} TO PUBLIC;
    ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO PUBLIC;
    ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON SEQUENCES TO PUBLIC`;
}
