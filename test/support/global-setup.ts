/** One server for the whole run; each test file takes a database of its own from it (see database.ts). */
import { randomUUID } from 'node:crypto';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestProject } from 'vitest/node';
import { startPostgres } from '../../infra/local/postgres.ts';

declare module 'vitest' {
  export interface ProvidedContext {
    postgresUrl: string;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const dataDir = path.join(tmpdir(), `cronce-test-${randomUUID()}`);
  const server = await startPostgres({ dataDir, settings: { fsync: 'off', max_connections: '300' } });
  project.provide('postgresUrl', server.url);
  return async () => {
    await server.kill();
    await rm(dataDir, { recursive: true, force: true });
  };
}
