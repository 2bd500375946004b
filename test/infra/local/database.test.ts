/** `npm start` on a database of one's own. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { freshDatabase, type TestDatabase } from '../../support/database.ts';
import { cleanUp, freePlace, cli, run, until, untilUp, type Place } from '../../support/local.ts';

/** On a busy machine a start takes tens of seconds. */
const longMs = 240_000;

let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase({ migrated: false })));
afterEach(cleanUp, longMs);
afterAll(async () => db.drop());

it('I2: leaves all but its own schema alone, and the example jobs out', { timeout: longMs }, async () => {
  const before = await schemas();
  const place = await freePlace();
  const start = run([...cli, 'dev', ...place.flags], { env: { DATABASE_URL: db.url } });
  await untilUp(place, start);
  expect(await jobs(place)).toEqual([]);
  await until(async () => (/sweep .*succeeded/.test(start.said()) ? true : undefined), start.ended);
  start.process.kill('SIGINT');
  expect([await start.ended, await start.stderr]).toEqual([0, '']);
  expect(await schemas()).toEqual([...before, 'cronce'].sort());
  expect(await db.query(`SELECT DISTINCT job FROM cronce.run`)).toEqual([{ job: 'sweep' }]);
  expect(await start.stdout).toContain(
    'In your database (DATABASE_URL) only the schema cronce is touched: applied 0001_coordinator, ',
  );
  expect(await start.stdout).toContain(
    'The example jobs (expire-sessions, roll-up-statistics, send-notifications) are left out: they need tables',
  );
});

it('I2: makes the examples’ tables where that is said, and runs them', { timeout: longMs }, async () => {
  const place = await freePlace();
  const start = run([...cli, 'dev', '--examples', ...place.flags], { env: { DATABASE_URL: db.url } });
  await untilUp(place, start);
  expect(await jobs(place)).toContain('expire-sessions');
  await until(async () => (/expire-sessions .*succeeded/.test(start.said()) ? true : undefined), start.ended);
  start.process.kill('SIGINT');
  expect([await start.ended, await start.stderr]).toEqual([0, '']);
  expect(await schemas()).toContain('app');
  expect(await start.stdout).toContain('the schemas cronce and app are touched: applied 0001_app.');
  expect(await start.stdout).not.toContain('left out');
});

it(
  'I2: delivers no example’s duplicates to a database that has no tables for it',
  { timeout: longMs },
  async () => {
    const flags = ['--job', 'expire-sessions', '--times', '2'];
    const duplicates = run([...cli, 'duplicates', ...flags], { env: { DATABASE_URL: db.url } });
    expect(await duplicates.ended).toBe(2);
    expect(await duplicates.stderr).toMatch(
      /^duplicates: expire-sessions is an example, .* --examples makes them\n$/,
    );
  },
);

async function schemas(): Promise<string[]> {
  const rows = await db.query(`SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' ORDER BY 1`);
  return rows.map(({ nspname }) => String(nspname)).sort();
}

async function jobs({ url, folder }: Place): Promise<string[]> {
  const token = await readFile(join(folder, 'token'), 'utf8');
  const answer = await fetch(`${url}/jobs`, { headers: { Authorization: `Bearer ${token}` } });
  return ((await answer.json()) as { jobs: { name: string }[] }).jobs.map(({ name }) => name);
}
