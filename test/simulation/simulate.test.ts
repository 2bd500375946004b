import { afterAll, beforeAll, expect, it } from 'vitest';
import { pooled, simulate, tableOf } from './simulate.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { scratchFolder } from '../support/scratch.ts';

let databases: TestDatabase[];
let folder: Awaited<ReturnType<typeof scratchFolder>>;
beforeAll(async () => {
  databases = [await freshDatabase(), await freshDatabase()];
  folder = await scratchFolder();
});
afterAll(async () => {
  await Promise.all(databases.map((db) => db.drop()));
  await folder.remove();
});

/** Over Berlin's change of clocks, with an outage, a pause and a redeployment in it; the same plan twice, side by side. */
it('three days of schedules, outage and redeployment leave no slot unaccounted for, and repeat from their seed', async () => {
  const plan = { start: new Date('2026-10-24T00:00:00Z'), days: 3, seed: 7 };
  const play = async (db: TestDatabase) => {
    const pool = await pooled(db, folder.path);
    const books = await simulate(plan, db, undefined, pool?.url);
    await pool?.close();
    return books;
  };
  const [books, again] = await Promise.all(databases.map(play));
  expect(books?.violations, books && tableOf(books)).toEqual([]);
  expect(books?.lines.reduce((sum, { by }) => sum + by.missed + by.paused, 0)).toBeGreaterThan(0);
  expect(books?.lines.reduce((sum, { caughtUp }) => sum + caughtUp, 0)).toBeGreaterThan(0);
  expect(books?.lines.reduce((sum, { turnedAway }) => sum + turnedAway, 0)).toBeGreaterThan(0);
  expect(again).toEqual(books);
}, 600_000);
