/**
 * Before `npm pack`: the package, in dist/. Compiled by tsc, so that its types are those of the sources; what is no
 * TypeScript is copied beside it.
 */
import { execFile } from 'node:child_process';
import { chmod, cp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const root = fileURLToPath(new URL('..', import.meta.url));
const dist = join(root, 'dist');

const copied = [
  'infra/migrations',
  'infra/sql',
  'infra/cli/template',
  'infra/plugin.cjs',
  'infra/plugin.d.cts',
] as const;

/** In the package there is nothing to bundle first. */
const load = `'use strict';

/** Loads a module of this folder. */
exports.load = (name) => import(\`./\${name}.js\`);
`;

/** tsc leaves the endings of sources in declarations, which some tools then look for. */
async function nameDeclarations(): Promise<void> {
  const files = (await readdir(dist, { recursive: true })).filter((file) => file.endsWith('.d.ts'));
  await Promise.all(
    files.map(async (file) => {
      const text = await readFile(join(dist, file), 'utf8');
      await writeFile(
        join(dist, file),
        text.replace(/(from |import\()(['"])(\.{1,2}\/[^'"]+)\.ts\2/g, '$1$2$3.js$2'),
      );
    }),
  );
}

async function main(): Promise<void> {
  await rm(dist, { recursive: true, force: true });
  const tsc = createRequire(import.meta.url).resolve('typescript/bin/tsc');
  await promisify(execFile)(process.execPath, [tsc, '-p', join(root, 'tsconfig.build.json')]);
  for (const part of copied) await cp(join(root, part), join(dist, part), { recursive: true });
  await writeFile(join(dist, 'infra/load.cjs'), load);
  await nameDeclarations();
  await chmod(join(dist, 'infra/cli/cronce.js'), 0o755);
}

await main();
