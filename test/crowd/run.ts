/** `npm run crowd`: 500 jobs, two deliveries each, at one moment over 8 processes, on a server of 100 connections. */
import { join } from 'node:path';
import { hasPgbouncer, pgbouncerWay } from '../faults/ways.ts';
import { openPublic } from '../support/bed.ts';
import { freshDatabase } from '../support/database.ts';
import { scratchFolder } from '../support/scratch.ts';
import { startServer } from '../support/server.ts';
import { crowd, type Outcome } from './crowd.ts';

const size = { jobs: 500, processes: 8, timeLeftMs: 120_000, workMs: 0, retryAfterMs: [60_000, 120_000] };

function show(how: string, { decided, thrown, successes, skips }: Outcome): boolean {
  const [lost, doubled] = [successes.filter((n) => n === 0).length, successes.filter((n) => n > 1).length];
  const turned = Object.entries(skips).map(([reason, count]) => `${count} ${reason}`);
  console.log(`${how}: ${decided} of ${2 * size.jobs} decided, ${thrown.length} invocations thrown`);
  console.log(`  slots: ${lost} lost, ${doubled} doubled; turned away: ${turned.join(', ')}`);
  for (const words of new Set(thrown)) console.log(`  thrown: ${words}`);
  return lost + doubled === 0 && decided === 2 * size.jobs;
}

const folder = await scratchFolder();
const server = await startServer({
  dataDir: join(folder.path, 'server'),
  settings: { max_connections: '100' },
});
let allWell = true;
for (const how of (await hasPgbouncer()) ? ['straight', 'by PgBouncer'] : ['straight']) {
  const db = await freshDatabase({ serverUrl: server.url });
  await db.query(openPublic(db.name));
  const way = how === 'straight' ? null : await pgbouncerWay(db.url, folder.path, 20);
  const road = await way?.open(0);
  allWell = show(how, await crowd(db, { ...size, url: road?.target.url ?? db.url })) && allWell;
  await road?.close();
  await way?.close();
  await db.drop();
}
await server.kill();
await folder.remove();
process.exitCode = allWell ? 0 : 1;
