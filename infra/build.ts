import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { basename, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build as bundle, type BuildFailure, type BuildResult } from 'esbuild';
import { loadJobs } from './declared.ts';
import { finish, readFlags } from './flags.ts';

/**
 * Bundles functions/*.ts to .build/, from where both Lambda and serverless-offline run them.
 *
 * Each `import()` is a chunk of its own, so a function loads one driver and not the other. The folder is brought up
 * to date file by file, never emptied: an `npm start` in the same checkout goes on loading handlers from it.
 */

const root = fileURLToPath(new URL('..', import.meta.url));
export const buildFolder = join(root, '.build');

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

/** @throws {BuildError} */
export async function build(): Promise<Built> {
  const { metafile, outputFiles } = await bundleFunctions().catch((cause: unknown) => {
    throw new BuildError(firstFault(cause), { cause });
  });
  const contents = new Map<string, Uint8Array>(
    outputFiles.map(({ path, contents }) => [relative(buildFolder, path), contents]),
  );
  contents.set('package.json', encode({ type: 'module' }));
  contents.set('meta.json', encode(metafile));
  await bringUpToDate(contents);
  return { folder: buildFolder, files: [...contents.keys()], metafile };
}

async function bundleFunctions(): Promise<Bundled> {
  return withoutIdleBanners(await bundleAll());
}

/** esbuild puts the banner in every chunk, and one alone asks for what it brings. Its line stays, for the source maps. */
function withoutIdleBanners(bundled: Bundled): Bundled {
  const outputFiles = bundled.outputFiles.map((file) => {
    if (!file.text.startsWith(banner) || file.text.includes('typeof require')) return file;
    const output = bundled.metafile.outputs[relative(root, file.path)];
    if (output !== undefined) output.bytes -= banner.length;
    return { ...file, contents: file.contents.slice(banner.length) };
  });
  return { ...bundled, outputFiles };
}

async function bundleAll(): Promise<Bundled> {
  return bundle({
    absWorkingDir: root,
    entryPoints: ['functions/*.ts'],
    outdir: buildFolder,
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

function firstFault(failure: unknown): string {
  const { text, location } = ((failure as Partial<BuildFailure>).errors ?? [])[0] ?? {
    text: String(failure),
    location: null,
  };
  return location === null ? text : `${location.file}:${location.line}:${location.column}: ${text}`;
}

function encode(value: unknown): Uint8Array {
  return new TextEncoder().encode(`${JSON.stringify(value)}\n`);
}

async function bringUpToDate(contents: ReadonlyMap<string, Uint8Array>): Promise<void> {
  await mkdir(buildFolder, { recursive: true });
  await Promise.all([...contents].map(async ([name, bytes]) => replace(join(buildFolder, name), bytes)));
  const stale = (await readdir(buildFolder)).filter(
    (name) => !contents.has(name) && !name.startsWith(draftMark),
  );
  await Promise.all(stale.map(async (name) => rm(join(buildFolder, name), { recursive: true, force: true })));
}

const draftMark = '.draft-';

/** By renaming, so that nobody ever loads half a file; and not at all where nothing has changed. */
async function replace(file: string, bytes: Uint8Array): Promise<void> {
  const present = await readFile(file).catch(() => undefined);
  if (present?.equals(bytes)) return;
  const draft = join(buildFolder, `${draftMark}${process.pid}-${basename(file)}`);
  await writeFile(draft, bytes);
  await rename(draft, file);
}

async function main(): Promise<void> {
  const began = performance.now();
  readFlags(
    { name: 'npm run build', says: 'bundles the functions to .build/', flags: {} },
    process.argv.slice(2),
  );
  await loadJobs(); // what can't be loaded would fail in each function
  const { outputs } = (await build()).metafile;
  for (const [file, { entryPoint }] of Object.entries(outputs))
    if (entryPoint?.startsWith('functions/'))
      console.log(`${file}  ${kilobytes(file, outputs)} KB with all it can load`);
  console.log(`built in ${Math.round(performance.now() - began)} ms`);
}

function kilobytes(entry: string, outputs: Bundled['metafile']['outputs']): number {
  const reached = new Set([entry]);
  // A set goes on to what is added to it meanwhile.
  for (const file of reached) outputs[file]?.imports.forEach(({ path }) => reached.add(path));
  return Math.round([...reached].reduce((sum, file) => sum + (outputs[file]?.bytes ?? 0), 0) / 1024);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  main().catch((error: unknown) => finish('build', error));
}
