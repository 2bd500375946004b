/**
 * What Cronce adds to the framework: the functions and resources that follow from the registry, and a build before
 * whatever runs or packages them.
 */
import { build, BuildError } from './build.ts';
import { DeploymentError, deploymentOf, type Deployment } from './deployment.ts';
import { startStandIn } from './local/stand-in.ts';
import { openProject } from './project.ts';

/** What the framework has read of serverless.yml. */
export interface Configuration {
  readonly service: string;
  readonly functions?:
    Readonly<Record<string, unknown>> | readonly Readonly<Record<string, unknown>>[] | null;
  readonly resources?: Resources | readonly Resources[] | null;
  readonly package?: { readonly patterns?: readonly string[]; readonly individually?: boolean } | null;
}

interface Resources {
  readonly Resources?: Readonly<Record<string, unknown>>;
}

/** One part of the configuration, and what becomes of it. */
export type Extension = readonly [path: readonly string[], value: unknown];

/** A message for people, where nothing can be deployed. */
export class PluginError extends Error {
  override readonly name = 'PluginError';
}

/**
 * What the configuration is extended by, for a stage.
 * @throws {Error} whose message is one line with the cure: see {@link isForPeople}
 */
export async function extensionsOf(
  root: string,
  stage: string,
  configuration: Configuration,
): Promise<readonly Extension[]> {
  const { jobs } = await openProject(root);
  const { service } = configuration;
  const deployment = deploymentOf({ service, stage, environment: process.env, jobs });
  const functions = listed(configuration.functions);
  const resources = listed(configuration.resources);
  const own = keysOf(functions);
  demandFree('function', own, Object.keys(deployment.functions));
  demandFree(
    'resource',
    keysOf(resources.map(({ Resources = {} }) => Resources)),
    Object.keys(deployment.resources.Resources),
  );
  return [
    [['functions'], [...functions, packagedAlone(deployment.functions, own, configuration)]],
    [['resources'], [...resources, deployment.resources]],
    [['package', 'patterns'], patternsFor(own, configuration)],
  ];
}

/** All that a function of ours needs is in its bundle. */
const patterns = ['!**', '.build/**', '!.build/meta.json', '!.build/.draft-*'];

/** What the local set-up keeps, passwords and tokens among it, is nobody's to deploy. */
function patternsFor(own: readonly string[], { package: chosen }: Configuration): readonly string[] {
  const theirs = chosen?.patterns ?? [];
  if (own.length === 0) return theirs.length > 0 ? theirs : patterns;
  return [...theirs, '!.build/**', '!.cronce/**'];
}

/** Beside functions of the project's own, whose package is theirs to choose, each of ours has one of its own. */
function packagedAlone(
  functions: Deployment['functions'],
  own: readonly string[],
  { package: chosen }: Configuration,
): Readonly<Record<string, unknown>> {
  if (own.length === 0 && chosen?.individually !== true) return functions;
  return Object.fromEntries(
    Object.entries(functions).map(([name, one]) => [
      name,
      { ...one, package: { individually: true, patterns } },
    ]),
  );
}

function listed<T>(given: T | readonly T[] | null | undefined): readonly T[] {
  return Array.isArray(given) ? (given as readonly T[]) : given ? [given as T] : [];
}

function keysOf(parts: readonly Readonly<Record<string, unknown>>[]): readonly string[] {
  return parts.flatMap((part) => Object.keys(part));
}

function demandFree(kind: string, own: readonly string[], ours: readonly string[]): void {
  const taken = ours.find((name) => own.includes(name));
  if (taken !== undefined)
    throw new PluginError(`serverless.yml has a ${kind} "${taken}", as Cronce has; rename yours`);
}

/** Builds a project. */
export async function buildFirst(root: string): Promise<void> {
  await build(root);
}

/** Before serverless-offline starts. */
export { startStandIn as standIn };

const forPeople = [PluginError, BuildError, DeploymentError].map(({ name }) => name);

/** Whether an error is made to be read as it is: its message is one line, with the cure. */
export function isForPeople(error: unknown): error is Error {
  const names = [...forPeople, 'ProjectError', 'JobError', 'LockNameError', 'SettingsError'];
  return error instanceof Error && names.includes(error.name);
}
