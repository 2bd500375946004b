'use strict';

// serverless.yml reads its functions and resources from here. CommonJS, because osls loads such files by require();
// all it does is to hand over to deployment.ts, which is typed and checked like the rest. Bundled, and not run through
// a TypeScript loader: one that is registered in this process would slow down serverless-offline's every worker.
const { rm } = require('node:fs/promises');
const { join } = require('node:path');
const { pathToFileURL } = require('node:url');
const { build } = require('esbuild');

const root = join(__dirname, '..');

async function load() {
  // Where bare imports find their packages.
  const outfile = join(root, 'node_modules', '.cache', 'cronce', `deployment-${process.pid}.mjs`);
  const entryPoints = [join(__dirname, 'deployment.ts')];
  await build({
    entryPoints,
    outfile,
    bundle: true,
    format: 'esm',
    platform: 'node',
    packages: 'external',
    logLevel: 'error',
  });
  try {
    return await import(pathToFileURL(outfile));
  } finally {
    await rm(outfile, { force: true });
  }
}

const loaded = load();

module.exports = async ({ resolveVariable, resolveConfigurationProperty }) => {
  const service = await resolveConfigurationProperty(['service']);
  const stage = await resolveVariable('sls:stage');
  try {
    const { deploymentOf } = await loaded;
    return deploymentOf({ service, stage, environment: process.env });
  } catch (error) {
    throw plain(error);
  }
};

// Their messages are one line with the cure. osls prints an error's stack instead, which is of a bundle that is gone.
const ours = ['DeploymentError', 'JobError', 'SettingsError'];

function plain(error) {
  if (error instanceof Error && ours.includes(error.name)) error.stack = error.message;
  return error;
}
