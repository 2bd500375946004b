import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { freePort, type LocalPostgres } from '../../infra/local/postgres.ts';
import { coordinate } from '../../src/coordinate.ts';
import { defineJob } from '../../src/job.ts';
import type { Target } from '../../src/postgres/driver.ts';
import { AccessRefused, CannotConnect } from '../../src/postgres/errors.ts';
import { Session } from '../../src/postgres/session.ts';
import { crowd } from './crowd.ts';
import { openPublic } from '../support/bed.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { startProxy } from '../support/proxy.ts';
import { scratchFolder } from '../support/scratch.ts';
import { startServer } from '../support/server.ts';

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

describe('a server that turns us away for the moment', () => {
  let db: TestDatabase;
  beforeAll(async () => {
    db = await freshDatabase();
  });
  afterAll(async () => db.drop());

  const deliver = async (name: string, target: Target, timeLeftMs = 30_000) =>
    coordinate(
      deliveryFor(defineJob({ name, work: async () => 'run' }), '2026-11-29T12:00:00Z'),
      timeLeftMs,
      coordinatorOn(db.url, { target }),
    );
  const elsewhere = (port: number) => targetOf(Object.assign(new URL(db.url), { port: `${port}` }).href);

  it('whose port is closed: it is asked again until it listens', async () => {
    const port = await freePort();
    const run = deliver('early', elsewhere(port));
    await delay(1_000);
    const proxy = await startProxy({ targetPort: Number(new URL(db.url).port), port });
    expect(await run).toMatchObject({ status: 'succeeded' });
    await proxy.stop();
  });

  it('whose last connection is taken: it is asked again until one is free', async () => {
    const narrow = `narrow_${db.name}`;
    await db.query(
      `CREATE ROLE ${narrow} LOGIN PASSWORD 'narrow' CONNECTION LIMIT 1 IN ROLE ${db.role.name}`,
    );
    const target = targetOf(Object.assign(new URL(db.url), { username: narrow, password: 'narrow' }).href);
    const only = await Session.open(target);
    const run = deliver('crowded', target);
    await delay(1_000);
    await only.close();
    expect(await run).toMatchObject({ status: 'succeeded' });
    await db.query(`DROP ROLE ${narrow}`);
  });

  it('for good: it is asked for half of the time, and then said as what it is', async () => {
    const startedAt = performance.now();
    await expect(deliver('closed', elsewhere(await freePort()), 3_000)).rejects.toThrow(CannotConnect);
    expect(performance.now() - startedAt).toBeGreaterThan(300);
  });

  it('for a wrong password: it is asked once', async () => {
    const target = targetOf(Object.assign(new URL(db.url), { password: 'wrong' }).href);
    const proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
    await expect(deliver('wrong', { ...target, url: proxy.url(target.url) })).rejects.toThrow(AccessRefused);
    expect(proxy.connections).toHaveLength(1);
    await proxy.stop();
  });
});
