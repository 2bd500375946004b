import { readFile } from 'node:fs/promises';
import { expect, it } from 'vitest';
import { migrate, MigrationError } from '../infra/migrate.ts';
import { dumpSchema } from '../infra/schema.ts';
import { schemaVersion } from '../src/claim.ts';
import { freshDatabase } from './support/database.ts';

it('is applied once, though twenty start at the same time', async () => {
  const db = await freshDatabase({ migrated: false });
  const applied = await Promise.all(Array.from({ length: 20 }, () => migrate(db.url, { examples: true })));
  expect(applied.filter((names) => names.length > 0)).toHaveLength(1);
  expect(await db.query('SELECT max(version) AS version FROM cronce.migration')).toEqual([
    { version: schemaVersion },
  ]);
  expect(await migrate(db.url)).toEqual([]);
  await db.drop();
});

it('makes the schema that infra/schema.sql shows', async () => {
  const db = await freshDatabase();
  const committed = await readFile(new URL('../infra/schema.sql', import.meta.url), 'utf8');
  expect(await dumpSchema(db.url), 'run `npm run schema` and look at the difference').toBe(committed);
  await db.drop();
});

it('refuses a database that is newer than this code', async () => {
  const db = await freshDatabase();
  await db.query(`INSERT INTO cronce.migration (version, name) VALUES (999, '0999_future')`);
  await expect(migrate(db.url)).rejects.toThrow(MigrationError);
  await expect(migrate(db.url)).rejects.toThrow(/999 \(0999_future\).*deploy the newer Cronce/);
  await db.drop();
});
