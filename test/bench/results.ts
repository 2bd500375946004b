/** What is kept of measurements: docs/bench/results.json, and the tables and the plot that are drawn from it. */
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { cpus, loadavg, totalmem } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Results, Under, UnderPeers } from './kept.ts';
import { peerVersions } from './peers.ts';
import { peerPlot } from './peer-plot.ts';
import { summaryOf } from './peer-tables.ts';
import { plot } from './plot.ts';
import { changesOf, figuresOf, tablesOf } from './tables.ts';

const docs = fileURLToPath(new URL('../../docs/', import.meta.url));
const folder = join(docs, 'bench');

export function circumstances(postgres: string, pairs: number): Under {
  // They are exact there.
  const { dependencies } = createRequire(import.meta.url)('../../package.json') as {
    dependencies: Record<string, string>;
  };
  const versionOf = (name: string) => dependencies[name] ?? '';
  return {
    date: new Date().toISOString().slice(0, 10),
    pairs,
    cores: cpus().length,
    memoryGb: Math.round(totalmem() / 2 ** 30),
    load: Number((loadavg()[0] ?? NaN).toFixed(1)),
    versions: {
      node: process.versions.node,
      postgres,
      pg: versionOf('pg'),
      '@neondatabase/serverless': versionOf('@neondatabase/serverless'),
    },
  };
}

/** Peers are run by a Node of their own. */
export async function underPeers(under: Under): Promise<UnderPeers> {
  const { node: _ours, ...versions } = under.versions;
  return { ...under, versions: { ...versions, ...(await peerVersions()) } };
}

export async function keep(found: Results): Promise<void> {
  await mkdir(folder, { recursive: true });
  const file = join(folder, 'results.json');
  const before = await readFile(file, 'utf8').catch(() => '{}');
  const all: Results = { ...(JSON.parse(before) as Results), ...found };
  await writeFile(file, `${JSON.stringify(all, null, 1)}\n`);
  await writeFile(join(folder, 'results.md'), tablesOf(all));
  if (all.invocation) await writeFile(join(folder, 'invocation.svg'), plot(all.invocation.found));
  if (all.peers) await writeFile(join(folder, 'peers.svg'), peerPlot(all.peers.found, 5));
  const page = join(docs, 'bench.md');
  const beside = summaryOf(all);
  const aims = fill(await readFile(page, 'utf8'), 'figures', figuresOf(all));
  const text = beside === '' ? aims : fill(aims, 'peers', beside);
  const changes = changesOf(all); // of the last run that had an earlier build beside it
  await writeFile(page, changes === '' ? text : fill(text, 'before and after', changes));
}

/** A page's own words stay; between two marks are today's figures. */
function fill(text: string, name: string, figures: string): string {
  const marked = new RegExp(`(<!-- ${name} -->\n).*(<!-- end of ${name} -->)`, 's');
  return text.replace(marked, (_, from: string, to: string) => from + figures + to);
}
