/** One server for the whole run; each test file takes a database of its own from it (see database.ts). */
import path from 'node:path';
import type { TestProject } from 'vitest/node';
import { scratchFolder } from './scratch.ts';
import { startServer } from './server.ts';

declare module 'vitest' {
  export interface ProvidedContext {
    postgresUrl: string;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const folder = await scratchFolder();
  const settings = { max_connections: '300' };
  const server = await startServer({ dataDir: path.join(folder.path, 'server'), settings });
  project.provide('postgresUrl', server.url);
  return async () => {
    await server.kill();
    await folder.remove();
  };
}
