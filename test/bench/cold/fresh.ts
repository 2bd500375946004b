/**
 * What a fresh process measures of itself: `fresh.mjs <what> <entry> [<driver>]`. One JSON on the last line.
 * - `import`: the entry, and then the driver's chunk if one is named.
 * - `invoke`: the entry, a pause as between Lambda's init and its first event, and one invocation.
 * - `whole`: the entry and one invocation, without a pause.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

const [what, entry = '', driver] = process.argv.slice(2);
const load = async (file: string) =>
  (await import(pathToFileURL(file).href)) as { handler?: (...given: unknown[]) => Promise<unknown> };

const context = { awsRequestId: `cold-${process.pid}`, getRemainingTimeInMillis: () => 60_000 };
const event = {
  cronce: { job: 'expire-sessions', trigger: 'manual', slot: `manual:cold-${process.pid}-${Date.now()}` },
};

let startedAt = performance.now();
const { handler } = await load(entry);
if (what === 'import' && driver) await load(driver);
if (what === 'invoke') {
  await sleep(100);
  startedAt = performance.now();
}
if (what !== 'import') await handler?.(event, context);
const ms = performance.now() - startedAt;
console.log(`\n${JSON.stringify({ ms, rssMb: process.memoryUsage().rss / 2 ** 20 })}`);
