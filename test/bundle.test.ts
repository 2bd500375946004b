import type { Metafile } from 'esbuild';
import { beforeAll, expect, it } from 'vitest';
import { build } from '../infra/build.ts';

/** KB minified, as Lambda loads it. A cold start pays for every one of them. */
const budgetKb = { all: 345, neon: 275 };

let outputs: Metafile['outputs'];
beforeAll(async () => {
  ({
    metafile: { outputs },
  } = await build());
});

/** Every chunk that an entry can come to load, without those that hold a given package. */
function chunksFrom(entry: string, without?: string): string[] {
  const seen = new Set<string>();
  const visit = (path: string) => {
    const chunk = outputs[path];
    if (!chunk || seen.has(path) || (without !== undefined && holds(chunk, without))) return;
    seen.add(path);
    for (const next of chunk.imports) visit(next.path);
  };
  visit(entry);
  return [...seen];
}

function holds(chunk: Metafile['outputs'][string], name: string): boolean {
  return Object.keys(chunk.inputs).some((input) => input.includes(`node_modules/${name}/`));
}

function kilobytes(paths: readonly string[]): number {
  return paths.reduce((sum, path) => sum + (outputs[path]?.bytes ?? 0), 0) / 1024;
}

it('keeps the scheduled function small, and each driver a chunk of its own', () => {
  const all = chunksFrom('.build/scheduled.js');
  const neon = chunksFrom('.build/scheduled.js', 'pg');
  console.log(
    `scheduled: ${kilobytes(all).toFixed(0)} KB in all, ${kilobytes(neon).toFixed(0)} KB for a Neon URL`,
  );
  expect(kilobytes(all)).toBeLessThan(budgetKb.all);
  expect(kilobytes(neon)).toBeLessThan(budgetKb.neon);
  expect(neon.length).toBeLessThan(all.length);
});

it('brings no AWS SDK, and loads no driver before it is needed', () => {
  for (const path of Object.keys(outputs)) {
    const inputs = Object.keys(outputs[path]?.inputs ?? {});
    expect(inputs.filter((input) => input.includes('@aws-sdk') || input.includes('@smithy'))).toEqual([]);
  }
  const statically = (path: string): string[] => [
    path,
    ...(outputs[path]?.imports ?? [])
      .filter(({ kind }) => kind === 'import-statement')
      .flatMap(({ path: next }) => statically(next)),
  ];
  const atOnce = statically('.build/scheduled.js').flatMap((path) =>
    Object.keys(outputs[path]?.inputs ?? {}),
  );
  expect(atOnce.filter((input) => /node_modules\/(pg|@neondatabase|cronstrue)\//.test(input))).toEqual([]);
});
