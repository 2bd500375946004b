/**
 * What every command works on: a folder with a serverless.yml, and in it `functions/` with the three handlers and
 * `functions/jobs/index.ts`, which exports the registry. This repository is one, and so is that of whoever installs Cronce.
 */
import { readFile, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { build } from 'esbuild';
import { parse } from 'yaml';
import type { Job, Registry } from '../src/job.ts';
import { sweepJob } from '../src/sweep/sweep.ts';
import { BuildError, firstFault } from './build.ts';
import { keepLongStacks, located } from './declared.ts';

export interface Project {
  /** Where its serverless.yml is. */
  readonly root: string;
  readonly registry: Registry;
  /** All that is deployed and delivered: the jobs of the registry, and the sweep, which is one too. */
  readonly jobs: readonly Job[];
  /** Those that only show how it is done, by the registry's `examples`: they need tables of their own. */
  readonly exampleNames: readonly string[];
}

/** There is no project in this folder, or not a whole one. Its message is one line, with the cure. */
export class ProjectError extends Error {
  override readonly name = 'ProjectError';
}

const jobsIndex = join('functions', 'jobs', 'index.ts');

/** Where the example jobs keep the migrations of their tables. */
export function exampleMigrationsOf(root: string): string {
  return join(root, 'functions', 'jobs', 'migrations');
}

/**
 * @throws {ProjectError}
 * @throws {JobError} that names file, job and option, for a job that can't be declared
 * @throws {BuildError} for what is no TypeScript
 */
export async function openProject(root: string): Promise<Project> {
  const declared = await load(root);
  const { registry, examples } = declared;
  if (!(registry instanceof Map))
    throw new ProjectError(
      `${jobsIndex} exports no registry; add: export const registry = defineJobs([…your jobs])`,
    );
  return {
    root,
    registry: registry as Registry,
    jobs: [...(registry as Registry).values(), sweepAsDeclared(registry as Registry)],
    exampleNames: Array.isArray(examples) ? (examples as readonly Job[]).map(({ name }) => name) : [],
  };
}

/**
 * The name of the service in a folder's serverless.yml.
 * @throws {ProjectError}
 */
export async function serviceOf(root: string): Promise<string> {
  const { service } = await configuration(root);
  if (typeof service === 'string' && /^[^$]+$/.test(service)) return service;
  throw new ProjectError(
    `service in serverless.yml is ${JSON.stringify(service ?? null)}; here it must be a plain name`,
  );
}

async function configuration(root: string): Promise<{ readonly service?: unknown }> {
  const text = await readFile(join(root, 'serverless.yml'), 'utf8').catch((cause: unknown) => {
    throw new ProjectError(`there is no serverless.yml in ${root}; npx cronce init writes one`, { cause });
  });
  try {
    const read: unknown = parse(text, { logLevel: 'silent' });
    return typeof read === 'object' && read !== null ? read : {};
  } catch (cause) {
    throw new ProjectError(`serverless.yml can't be read: ${String(cause).split('\n', 1).join()}`, { cause });
  }
}

let loads = 0;

/**
 * Bundled first, since the jobs are TypeScript that whatever Node runs this may not read. Errors name the places in their
 * sources all the same. Anew each time: between two of them a file may have been edited.
 */
async function load(root: string): Promise<{ readonly registry?: unknown; readonly examples?: unknown }> {
  const entry = join(root, jobsIndex);
  await stat(entry).catch((cause: unknown) => {
    throw new ProjectError(`there is no ${jobsIndex} in ${root}; npx cronce init writes one`, { cause });
  });
  // Where bare imports find their packages.
  const outfile = join(root, 'node_modules', '.cache', 'cronce', `jobs-${process.pid}-${(loads += 1)}.mjs`);
  await build({
    absWorkingDir: root,
    entryPoints: [entry],
    outfile,
    bundle: true,
    format: 'esm',
    platform: 'node',
    packages: 'external',
    sourcemap: 'inline',
    keepNames: true,
    logLevel: 'silent',
  }).catch((cause: unknown) => {
    throw new BuildError(firstFault(cause), { cause });
  });
  keepLongStacks();
  process.setSourceMapsEnabled(true);
  try {
    return (await import(pathToFileURL(outfile).href)) as object;
  } catch (error) {
    throw located(error);
  } finally {
    await rm(outfile, { force: true });
  }
}

/** Only its options are of interest here; nothing is run. */
function sweepAsDeclared(registry: Registry): Job {
  const never = async (): Promise<never> => {
    throw new Error('this sweep is for reading its options only; sweepHandler makes the one that runs');
  };
  const idle = { sinks: [], timeoutMs: 0, retentionMs: 0, logger: console };
  return sweepJob({ ...idle, registry, deliver: never, openSession: never });
}
