import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { LocalPostgres } from '../infra/local/postgres.ts';
import { crowd } from './crowd/crowd.ts';
import { openPublic } from './support/bed.ts';
import { freshDatabase, type TestDatabase } from './support/database.ts';
import { scratchFolder } from './support/scratch.ts';
import { startServer } from './support/server.ts';

/** A tenth of what `npm run crowd` asks for. */
describe('far more deliveries at one moment than the server has connections', () => {
  let folder: Awaited<ReturnType<typeof scratchFolder>>;
  let server: LocalPostgres;
  let db: TestDatabase;
  beforeAll(async () => {
    folder = await scratchFolder();
    const settings = { max_connections: '16' };
    server = await startServer({ dataDir: join(folder.path, 'server'), settings });
    db = await freshDatabase({ serverUrl: server.url });
    await db.query(openPublic(db.name));
  });
  afterAll(async () => {
    await db.drop();
    await server.kill();
    await folder.remove();
  });

  const size = { jobs: 50, processes: 4, timeLeftMs: 60_000, workMs: 0, retryAfterMs: [1_000, 2_000] };

  it('straight: each is decided, each slot runs once, none is thrown', { timeout: 120_000 }, async () => {
    const { decided, thrown, successes, skips } = await crowd(db, { ...size, url: db.url });
    expect(thrown).toEqual([]);
    expect(decided).toBe(100);
    expect(successes).toEqual(Array(50).fill(1));
    expect((skips['duplicate'] ?? 0) + (skips['held'] ?? 0)).toBe(50);
  });
});
