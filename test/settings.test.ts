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

it('takes an empty variable for an absent one, and keeps other programs’ variables out', () => {
  const settings = readSettings({
    DATABASE_URL: url,
    CRONCE_EVENT_BUS: '',
    CRONCE_LEASE_MS: '',
    PATH: '/bin',
  });
  expect(settings).toMatchObject({ eventBus: null, leaseMs: 15_000 });
});
