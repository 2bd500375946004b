import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { basename, join, relative } from 'node:path';
import { build as bundle, type BuildFailure, type BuildResult, type Metafile } from 'esbuild';

/**
 * Bundles a project's functions to .build/, from where both Lambda and serverless-offline run them.
 *
 * Each `import()` is a chunk of its own, so a function loads one driver and not the other. The folder is brought up
 * to date file by file, never emptied: an `npm start` in the same checkout goes on loading handlers from it.
 */

/** The handlers that a project has in functions/; whatever else is there is its own. */
const entries = ['http', 'scheduled', 'sweep'] as const;

/** Where the bundles of a project go. */
export function buildFolderOf(root: string): string {
  return join(root, '.build');
}

const external = [
  '@aws-sdk/*', // Lambda's runtime brings it; locally it comes from node_modules
  'ws', // Lambda's Node has a WebSocket of its own; only Node 20 lacks it, and that is always a checkout
  'pg-native', // an addon that `pg` tries to load when asked for
  'cloudflare:sockets', // `pg` on another platform
];

/** CommonJS packages inside an ES module: esbuild leaves them a `require` that isn't there. */
const banner = `import{createRequire as __r}from'node:module';const require=__r(import.meta.url);`;

type Bundled = BuildResult<{ metafile: true; write: false }>;

export interface Built {
  readonly folder: string;
  readonly files: readonly string[];
  readonly metafile: Bundled['metafile'];
}

/** Its message is one line: the first place that is wrong. */
export class BuildError extends Error {
  override readonly name = 'BuildError';
}

/**
 * @param root of the project
 * @throws {BuildError}
 */
export async function build(root: string): Promise<Built> {
  const folder = buildFolderOf(root);
  const { metafile, outputFiles } = await bundleFunctions(root).catch((cause: unknown) => {
    throw new BuildError(firstFault(cause), { cause });
  });
  const contents = new Map<string, Uint8Array>(
    outputFiles.map(({ path, contents }) => [relative(folder, path), contents]),
  );
  contents.set('package.json', encode({ type: 'module' }));
  contents.set('meta.json', encode(metafile));
  await bringUpToDate(folder, contents);
  return { folder, files: [...contents.keys()], metafile };
}

type Bundles = Pick<Bundled, 'metafile' | 'outputFiles'>;

/**
 * Each by itself: bundled together, they would share all that any of them asks of a module, and a job's function would
 * load the HTTP API, since both come from one index.
 */
async function bundleFunctions(root: string): Promise<Bundles> {
  const bundles = await Promise.all(
    entries.map(async (entry) => withoutIdleBanners(root, await bundleOne(root, entry))),
  );
  return {
    metafile: {
      inputs: Object.assign({}, ...bundles.map(({ metafile }) => metafile.inputs)) as Metafile['inputs'],
      outputs: Object.assign({}, ...bundles.map(({ metafile }) => metafile.outputs)) as Metafile['outputs'],
    },
    outputFiles: bundles.flatMap(({ outputFiles }) => outputFiles),
  };
}

/** esbuild puts the banner in every chunk, and one alone asks for what it brings. Its line stays, for the source maps. */
function withoutIdleBanners(root: string, bundled: Bundled): Bundled {
  const outputFiles = bundled.outputFiles.map((file) => {
    if (!file.text.startsWith(banner) || file.text.includes('typeof require')) return file;
    const output = bundled.metafile.outputs[relative(root, file.path)];
    if (output !== undefined) output.bytes -= banner.length;
    return { ...file, contents: file.contents.slice(banner.length) };
  });
  return { ...bundled, outputFiles };
}

async function bundleOne(root: string, entry: string): Promise<Bundled> {
  return bundle({
    absWorkingDir: root,
    entryPoints: [join('functions', `${entry}.ts`)],
    outdir: buildFolderOf(root),
    chunkNames: `${entry}-[name]-[hash]`,
    bundle: true,
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    minify: true,
    legalComments: 'external', // beside the code, which is read at each cold start
    sourcemap: true,
    sourcesContent: false,
    metafile: true,
    write: false,
    logLevel: 'silent',
    external,
    banner: { js: banner },
  });
}

/** In one line: the first place that is wrong. */
export function firstFault(failure: unknown): string {
  const { text, location } = ((failure as Partial<BuildFailure>).errors ?? [])[0] ?? {
    text: String(failure),
    location: null,
  };
  return location === null ? text : `${location.file}:${location.line}:${location.column}: ${text}`;
}

function encode(value: unknown): Uint8Array {
  return new TextEncoder().encode(`${JSON.stringify(value)}\n`);
}

/** Removes nothing but what an earlier build of ours has left: the folder may hold what is somebody else's. */
async function bringUpToDate(folder: string, contents: ReadonlyMap<string, Uint8Array>): Promise<void> {
  await mkdir(folder, { recursive: true });
  const before = await builtBefore(folder);
  await Promise.all([...contents].map(async ([name, bytes]) => replace(folder, name, bytes)));
  const stale = (await readdir(folder)).filter((name) => before.has(name) && !contents.has(name));
  await Promise.all(stale.map(async (name) => rm(join(folder, name), { force: true })));
}

async function builtBefore(folder: string): Promise<ReadonlySet<string>> {
  try {
    const { outputs } = JSON.parse(await readFile(join(folder, 'meta.json'), 'utf8')) as Metafile;
    return new Set(Object.keys(outputs).map((path) => basename(path)));
  } catch {
    return new Set();
  }
}

const draftMark = '.draft-';

/** By renaming, so that nobody ever loads half a file; and not at all where nothing has changed. */
async function replace(folder: string, name: string, bytes: Uint8Array): Promise<void> {
  const file = join(folder, name);
  const present = await readFile(file).catch(() => undefined);
  if (present?.equals(bytes)) return;
  const draft = join(folder, `${draftMark}${process.pid}-${name}`);
  await writeFile(draft, bytes);
  await rename(draft, file);
}

/** Of a function, what its entry can come to load, KB. */
export function kilobytesOf(entry: string, { metafile: { outputs } }: Built): number {
  const reached = new Set([entry]);
  // A set goes on to what is added to it meanwhile.
  for (const file of reached) outputs[file]?.imports.forEach(({ path }) => reached.add(path));
  return Math.round([...reached].reduce((sum, file) => sum + (outputs[file]?.bytes ?? 0), 0) / 1024);
}
