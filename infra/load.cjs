'use strict';

// How osls, which loads by require(), comes to code of infra/ that is typed and checked like the rest. Bundled, and not
// run through a TypeScript loader: one that is registered in this process would slow down serverless-offline's every
// worker.
const { rm } = require('node:fs/promises');
const { join } = require('node:path');
const { pathToFileURL } = require('node:url');
const { build } = require('esbuild');

const root = join(__dirname, '..');

/** Loads a module of this folder; errors of it name the places in its sources. */
exports.load = async (name) => {
  // Where bare imports find their packages.
  const outfile = join(root, 'node_modules', '.cache', 'cronce', `${name}-${process.pid}.mjs`);
  await build({
    absWorkingDir: root,
    entryPoints: [join(__dirname, `${name}.ts`)],
    outfile,
    bundle: true,
    format: 'esm',
    platform: 'node',
    packages: 'external',
    sourcemap: 'inline',
    keepNames: true,
    logLevel: 'error',
    // Paths that are told from a module's own: they would be those of the bundle.
    define: { 'import.meta.url': JSON.stringify(pathToFileURL(join(__dirname, `${name}.ts`)).href) },
  });
  process.setSourceMapsEnabled(true);
  try {
    return await import(pathToFileURL(outfile));
  } finally {
    await rm(outfile, { force: true });
  }
};
