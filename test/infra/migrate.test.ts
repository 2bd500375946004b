import { readFile } from 'node:fs/promises';
import { expect, it } from 'vitest';
import { freePort } from '../../infra/local/postgres.ts';
import { migrate, MigrationError } from '../../infra/migrate.ts';
import { dumpSchema } from '../../infra/schema.ts';
import { schemaVersion } from '../../src/path/claim.ts';
import { examples } from '../support/checkout.ts';
import { freshDatabase } from '../support/database.ts';

it('is applied once, though twenty start at the same time', async () => {
  const db = await freshDatabase({ migrated: false });
  const applied = await Promise.all(Array.from({ length: 20 }, () => migrate(db.url, { examples })));
  expect(applied.filter((names) => names.length > 0)).toHaveLength(1);
  expect(await db.query('SELECT max(version) AS version FROM cronce.migration')).toEqual([
    { version: schemaVersion },
  ]);
  expect(await migrate(db.url)).toEqual([]);
  await db.drop();
});

it('goes forward on a database that holds data, and locks out code that knows of no lock delay', async () => {
  const db = await freshDatabase({ migrated: false });
  const first = await readFile(
    new URL('../../infra/migrations/0001_coordinator.sql', import.meta.url),
    'utf8',
  );
  await db.queryAsRole(`CREATE SCHEMA cronce; CREATE TABLE cronce.migration (version integer PRIMARY KEY, name text NOT NULL,
    breaking boolean NOT NULL DEFAULT true, applied_at timestamptz NOT NULL DEFAULT clock_timestamp());
    INSERT INTO cronce.migration VALUES (1, '0001_coordinator')`);
  await db.queryAsRole(first);
  await db.query(`INSERT INTO cronce.job (name, paused_at, paused_by) VALUES ('kept', now(), 'ann')`);
  await db.query(`INSERT INTO cronce.run (id, job, slot, scheduled_for, trigger, status, skip_reason, lock_name, received_at, finished_at)
    VALUES (gen_random_uuid(), 'kept', '2026-11-29T12:00:00Z', now(), 'rule', 'skipped', 'held', 'kept', now(), now())`);
  const error = await migrate(db.url).catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(MigrationError);
  expect(String(error)).toContain('say to which: CRONCE_DEPLOYMENT=<service>-<stage> npm run migrate');
  expect(await migrate(db.url, { deployment: 'shop-prod' })).toEqual([
    '0002_accounts',
    '0003_lock_delay',
    '0004_owed',
    '0005_outbox',
    '0006_idempotency',
    'functions',
  ]);
  expect(
    await db.query('SELECT j.name, r.slot FROM cronce.job j JOIN cronce.run r ON r.job = j.name'),
  ).toEqual([{ name: 'kept', slot: '2026-11-29T12:00:00Z' }]);
  expect(await db.query('SELECT job, paused_by FROM cronce.pause')).toEqual([
    { job: 'kept', paused_by: 'ann' },
  ]);
  expect(
    await db.query('SELECT deployment FROM cronce.run UNION ALL SELECT deployment FROM cronce.job'),
  ).toEqual([{ deployment: 'shop-prod' }, { deployment: 'shop-prod' }]);
  await db.query('SELECT cronce.require_schema(3)');
  await expect(db.query('SELECT cronce.require_schema(2)')).rejects.toMatchObject({ code: 'CR001' });
  await db.drop();
});

it('makes the schema that infra/schema.sql shows', async (context) => {
  const db = await freshDatabase();
  const [server] = await db.query(`SELECT current_setting('server_version_num')::int / 10000 AS major`);
  if (server?.['major'] !== 18) {
    await db.drop();
    context.skip('written by version 18; another words the same functions otherwise');
  }
  const committed = await readFile(new URL('../../infra/schema.sql', import.meta.url), 'utf8');
  expect(await dumpSchema(db.url), 'run `npm run schema` and look at the difference').toBe(committed);
  await db.drop();
});

it('says with its cure what keeps it from the server', async () => {
  const db = await freshDatabase({ migrated: false });
  const elsewhere = async (changes: Partial<URL>) => migrate(Object.assign(new URL(db.url), changes).href);
  await expect(elsewhere({ port: String(await freePort()) })).rejects.toThrow(
    /ECONNREFUSED.*nothing listens there; check host and port/,
  );
  await expect(elsewhere({ hostname: 'nowhere.invalid' })).rejects.toThrow(
    /this host’s name cannot be resolved/,
  );
  await expect(elsewhere({ password: 'wrong' })).rejects.toThrow(/28P01.*check user and password/);
  await expect(elsewhere({ pathname: '/missing' })).rejects.toThrow(/3D000.*check the database name/);
  await db.drop();
});

it('refuses a database that is newer than this code', async () => {
  const db = await freshDatabase();
  await db.query(`INSERT INTO cronce.migration (version, name) VALUES (999, '0999_future')`);
  await expect(migrate(db.url)).rejects.toThrow(MigrationError);
  await expect(migrate(db.url)).rejects.toThrow(/999 \(0999_future\).*deploy the newer Cronce/);
  await db.drop();
});

it('lays the functions anew when one has changed, and drops what no file declares', async () => {
  const db = await freshDatabase();
  await db.query(`CREATE FUNCTION cronce.of_before(a integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'`);
  await db.query(`CREATE FUNCTION cronce.holds(pid integer) RETURNS boolean LANGUAGE sql AS 'SELECT true'`);
  expect(await migrate(db.url)).toEqual([]);
  await db.query(`UPDATE cronce.laid SET hash = 'another'`);
  expect(await migrate(db.url)).toEqual(['functions']);
  expect(
    await db.query(
      `SELECT proname FROM pg_proc WHERE proname = 'of_before' OR (proname = 'holds' AND pronargs = 1)`,
    ),
  ).toEqual([]);
  await db.drop();
});
