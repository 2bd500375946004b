import { expect, it } from 'vitest';
import { readSettings, SettingsError } from '../src/settings.ts';

const url = 'postgres://user:sesame-open@db.example.com/app';

it.each([
  ['a Neon host', 'postgres://u:p@ep-x.eu-central-1.aws.neon.tech/app', {}, 'neon'],
  ['any other host', url, {}, 'pg'],
  ['a relay', url, { CRONCE_NEON_RELAY: '127.0.0.1:1/v1?address=' }, 'neon'],
  ['a setting', 'postgres://u:p@ep-x.neon.tech/app', { CRONCE_DRIVER: 'pg' }, 'pg'],
])('chooses the driver by %s', (_what, DATABASE_URL, rest, driver) => {
  expect(readSettings({ DATABASE_URL, ...rest }).target.driver).toBe(driver);
});

it.each([
  [{}, 'DATABASE_URL is not set; give a postgres:// URL'],
  [{ DATABASE_URL: '' }, 'DATABASE_URL is not set; give a postgres:// URL'],
  [{ DATABASE_URL: 'mysql://root:sesame-open@h/x' }, 'DATABASE_URL is not one; allowed: a postgres:// URL'],
  [{ DATABASE_URL: 'postgres://u:sesame-open#%@ /x' }, /^DATABASE_URL is not one; .*percent-encoded/],
  [
    { DATABASE_URL: url, CRONCE_LEASE_MS: '100' },
    'CRONCE_LEASE_MS is "100"; allowed: a whole number from 2000 to 300000',
  ],
  [
    { DATABASE_URL: url, CRONCE_LEASE_MS: '15s' },
    'CRONCE_LEASE_MS is "15s"; allowed: a whole number from 2000 to 300000',
  ],
  [
    { DATABASE_URL: url, CRONCE_RETENTION_DAYS: '13' },
    'CRONCE_RETENTION_DAYS is "13"; allowed: a whole number from 14 to 3650 (a dead letter may wait for 14 days)',
  ],
  [{ DATABASE_URL: url, CRONCE_DRIVER: 'mysql' }, 'CRONCE_DRIVER is "mysql"; allowed: pg or neon'],
  [
    { DATABASE_URL: url, CRONCE_LAESE_MS: '1' },
    /^CRONCE_LAESE_MS is no setting of Cronce; known: DATABASE_URL, /,
  ],
  [
    { DATABASE_URL: url, CRONCE_RUN_TOKENS: 'sesame' },
    'CRONCE_RUN_TOKENS is not one; allowed: tokens of at least 16 characters, separated by commas',
  ],
])('refuses %j in one line', (environment, message) => {
  expect(() => readSettings(environment)).toThrow(SettingsError);
  expect(() => readSettings(environment)).toThrow(message);
  try {
    readSettings(environment);
  } catch (error) {
    expect(String((error as Error).stack)).not.toContain('sesame');
    expect((error as Error).message).not.toContain('\n');
  }
});

const percent = (part: string) =>
  new RegExp(`^DATABASE_URL is not one; .*percent-encoding of the ${part} is wrong`);
const character = /^DATABASE_URL is not one; .*is a character in the password not percent-encoded\?/;

it.each<[string, string, RegExp]>([
  ['a password cut off in an escape', 'postgres://u:sesame%fade@h/db', percent('password')],
  ['a password in Latin-1', 'postgres://u:sesame%E9@h/db', percent('password')],
  ['a password with a bare %', 'postgres://u:sesame%@h/db', percent('password')],
  ['a password with %zz', 'postgres://u:sesame%zz@h/db', percent('password')],
  ['a password with NUL', 'postgres://u:sesame%00@h/db', percent('password')],
  ['a user in Latin-1', 'postgres://sesame%E9:p@h/db', percent('user')],
  ['a database in Latin-1', 'postgres://u:p@h/sesame%E9', percent('database')],
  ['a host in Latin-1', 'postgres://u:p@sesame%E9/db', percent('host')],
  ['a # in the password', 'postgres://u:12#sesame@h/db', character],
  ['a / in the password', 'postgres://u:12/sesame@h/db', character],
  ['a ? in the password', 'postgres://u:12?sesame@h/db', character],
  ['a space in the password', 'postgres://u:sesame sesame@h/db', character],
  ['an sslmode of nobody', `${url}?sslmode=verfy-full`, /sslmode is one of disable, .*verify-full/],
  [
    'a CA that isn’t there',
    `${url}?sslrootcert=/nowhere/ca.pem`,
    /sslrootcert names "\/nowhere\/ca.pem", which can’t be read \(ENOENT\)/,
  ],
  [
    'a CA that is a folder',
    `${url}?sslrootcert=/tmp`,
    /sslrootcert names "\/tmp", which can’t be read \(EISDIR\)/,
  ],
  ['a CA that is something else', `${url}?sslrootcert=package.json`, /which holds no CERTIFICATE in PEM/],
  [
    'a key that isn’t there',
    `${url}?sslkey=/nowhere.key`,
    /sslkey names "\/nowhere.key", which can’t be read/,
  ],
  ['libpq’s word for the system’s CAs', `${url}?sslrootcert=system`, /leave it out for Node’s own CAs/],
])('refuses %s in one line, and keeps it to itself', (_what, DATABASE_URL, message) => {
  try {
    readSettings({ DATABASE_URL });
    expect.unreachable();
  } catch (error) {
    expect(error).toBeInstanceOf(SettingsError);
    expect((error as Error).message).toMatch(message);
    expect((error as Error).message).not.toContain('\n');
    expect(String((error as Error).stack)).not.toContain('sesame');
  }
});

it.each([
  'postgres://u:ab%25fade%40%2F%23@h:5433/db?sslmode=verify-full',
  'postgres://u:p@/db?host=/var/run/postgresql',
  'postgres://u:p@%2Fvar%2Frun%2Fpostgresql/db',
  'postgres:///db',
  'postgresql://db:db@db/db',
  'postgres://h/db?user=ann@example',
  'postgres://u:p@[::1]:5432/db',
  'postgres://u:p@h/db\n',
  'postgres://u:caf%C3%A9@h/caf%C3%A9',
])('takes %j', (DATABASE_URL) => {
  expect(readSettings({ DATABASE_URL }).target).toMatchObject({ url: DATABASE_URL, driver: 'pg' });
});

it('takes an empty variable for an absent one, and keeps other programs’ variables out', () => {
  const settings = readSettings({
    DATABASE_URL: url,
    CRONCE_EVENT_BUS: '',
    CRONCE_LEASE_MS: '',
    PATH: '/bin',
  });
  expect(settings).toMatchObject({ eventBus: null, leaseMs: 15_000 });
});
