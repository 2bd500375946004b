/**
 * An ordinary role, such as a managed database gives to an application: it owns what it makes and nothing else, sees
 * and ends no sessions but its own, and changes no setting of the server.
 */
import pg from 'pg';

export interface Role {
  readonly name: string;
  readonly password: string;
}

/** Makes it, or makes it this again. By a session of the superuser. */
export async function makeRole(server: pg.Client, { name, password }: Role): Promise<void> {
  const known = await server.query('SELECT 1 FROM pg_roles WHERE rolname = $1', [name]);
  const rights = 'LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS';
  await server.query(
    `${known.rowCount === 1 ? 'ALTER' : 'CREATE'} ROLE ${pg.escapeIdentifier(name)} ` +
      `${rights} PASSWORD ${pg.escapeLiteral(password)}`,
  );
}

/** What the migrations need of a database: to come in, and to make schemas of one's own. */
export async function admit(server: pg.Client, { name }: Role, database: string): Promise<void> {
  await server.query(
    `GRANT CONNECT, CREATE ON DATABASE ${pg.escapeIdentifier(database)} TO ${pg.escapeIdentifier(name)}`,
  );
}

/** The URL with this role and this database in place of its own. */
export function urlFor(serverUrl: string, { name, password }: Role, database: string): string {
  const url = new URL(serverUrl);
  url.username = name;
  url.password = password;
  url.pathname = `/${database}`;
  return url.href;
}
