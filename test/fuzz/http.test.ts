import { afterAll, beforeAll, expect, it } from 'vitest';
import { fuzz } from './http.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';

let db: TestDatabase;
beforeAll(async () => {
  db = await freshDatabase();
});
afterAll(() => db.drop());

it(
  '1,500 drawn requests: no 5xx, none unanswered, and nothing changed without the scope',
  { timeout: 300_000 },
  async () => {
    const { broken, started, statuses } = await fuzz(
      { seed: 7, requests: 1_500, atOnce: 8, limitMs: 60_000 },
      db,
    );
    expect(broken).toEqual([]);
    // It must have come through to what it looks for.
    expect(started).toBeGreaterThan(20);
    const all = [...statuses.keys()].map((of) => Number(/\d+$/.exec(of)?.[0]));
    expect([...new Set(all)]).toEqual(
      expect.arrayContaining([200, 202, 400, 401, 403, 404, 405, 413, 415, 422]),
    );
  },
);
