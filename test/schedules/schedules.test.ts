import { afterAll, beforeAll, expect, it } from 'vitest';
import { playSchedules } from './schedules.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';

let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

/** The same plans each time, unless CRONCE_SEED names others; `npm run schedules` plays more. */
const seed = Number(process.env['CRONCE_SEED'] ?? 1);

it('in schedules drawn from a seed, with kills, cuts and forced ends, the four invariants hold', async () => {
  const broken = await playSchedules({ seed, rounds: 64, atOnce: 16 }, db);
  expect(broken, `seed ${seed}`).toEqual([]);
}, 240_000);
