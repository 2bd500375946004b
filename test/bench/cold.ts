/** What a cold start costs: fresh processes, interleaved, of our bundle and of the bare recipe bundled as ours is. */
import { execFile } from 'node:child_process';
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { build as bundle, type Metafile } from 'esbuild';
import { build, buildFolderOf } from '../../infra/build.ts';
import { root } from '../support/checkout.ts';
import { interleave, ratio, spreadOf, type Spread } from './pairs.ts';
import { packagedNode } from './peers.ts';
import { sevenths, shareOfACore } from './share.ts';
import type { Stand } from './stand.ts';

export interface ColdLine {
  readonly what: string;
  readonly ratio: Spread;
  readonly ours: Spread;
  readonly theirs: Spread;
}

/** The same, run by another Node or with less of a processor. */
export interface ColdElsewhere {
  readonly node: string;
  readonly share: string;
  readonly pairs: number;
  readonly lines: readonly ColdLine[];
}

export interface Cold {
  readonly node: string;
  /** Bytes of code that are loaded, by a pg URL. */
  readonly bytes: { readonly ours: number; readonly oursWithDriver: number; readonly bare: number };
  readonly lines: readonly ColdLine[];
  /** Of another build, which --old names, to this one's; absent if none was named. */
  readonly oldToNew?: readonly ColdLine[];
  /** Absent in figures of before, and where there is no such Node. */
  readonly elsewhere?: readonly ColdElsewhere[];
}

interface Fresh {
  readonly ms: number;
  readonly rssMb: number;
}

interface Bundle {
  readonly entry: string;
  readonly driver: string;
}

const here = fileURLToPath(new URL('.', import.meta.url));
const run = promisify(execFile);

export async function cold(stand: Stand, pairs: number, old?: string): Promise<Cold> {
  const { metafile } = await build(root);
  const bare = await bundleBare(stand.folder);
  const now = await bundleIn(buildFolderOf(root));
  const harness = join(stand.folder, 'fresh.mjs');
  const fresh = freshProcesses(stand, harness, [process.execPath]);
  const before = old === undefined ? undefined : await bundleIn(old);
  return {
    node: process.version,
    bytes: { ...(await bytesOf(metafile, now)), bare: (await stat(bare)).size },
    lines: await beside(fresh, now, bare, pairs),
    ...(before && { oldToNew: await oldToNew(fresh, before, now, pairs) }),
    elsewhere: await elsewhere(stand, harness, now, bare, pairs),
  };
}

/** By the Node that functions run on, on a whole core and on 256 MB's share of one. */
async function elsewhere(
  stand: Stand,
  harness: string,
  now: Bundle,
  bare: string,
  pairs: number,
): Promise<ColdElsewhere[]> {
  const node = await packagedNode();
  if (node === undefined) return [];
  const by = async (prefix: readonly string[], share: string, fewer: number): Promise<ColdElsewhere> => {
    const lines = await beside(freshProcesses(stand, harness, [...prefix, node.path]), now, bare, fewer);
    return { node: node.version, share, pairs: fewer, lines };
  };
  const found = [await by([], 'a whole core', Math.ceil(pairs / 2))];
  const share = await shareOfACore(sevenths);
  if (share === undefined) return found;
  // Each takes seven times as long.
  found.push(await by(share.prefix, `256 MB’s share of a core, by a ${share.how}`, Math.ceil(pairs / 4)));
  await share.remove();
  return found;
}

type Ask = (what: string, ...files: string[]) => Promise<Fresh>;

function freshProcesses(stand: Stand, harness: string, [command = '', ...words]: readonly string[]): Ask {
  const env = { PATH: process.env['PATH'], DATABASE_URL: stand.url('bench'), CRONCE_JOB: 'expire-sessions' };
  return async (what, ...files) => {
    const { stdout } = await run(command, [...words, harness, what, ...files], { env });
    return JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as Fresh;
  };
}

/** Keeps what each process says of its memory too. */
async function measured<K extends string>(
  asks: Readonly<Record<K, () => Promise<Fresh>>>,
  pairs: number,
): Promise<Record<K, { ms: number[]; rssMb: number[] }>> {
  const rssMb = Object.fromEntries(Object.keys(asks).map((name) => [name, [] as number[]])) as Record<K, number[]>; // prettier-ignore
  const things = Object.fromEntries(
    Object.entries<() => Promise<Fresh>>(asks).map(([name, ask]) => [
      name,
      async () => {
        const { ms, rssMb: memory } = await ask();
        rssMb[name as K].push(memory);
        return ms;
      },
    ]),
  ) as Record<K, () => Promise<number>>;
  const times = await interleave(things, pairs, async (thing) => (await thing()) as number);
  return Object.fromEntries(
    Object.entries<number[]>(times).map(([name, ms]) => [name, { ms, rssMb: rssMb[name as K].slice(-ms.length) }]), // prettier-ignore
  ) as Record<K, { ms: number[]; rssMb: number[] }>;
}

async function beside(fresh: Ask, now: Bundle, bare: string, pairs: number): Promise<ColdLine[]> {
  const all = await measured(
    {
      alone: async () => fresh('import', now.entry),
      withDriver: async () => fresh('import', now.entry, now.driver),
      bare: async () => fresh('import', bare),
      invoke: async () => fresh('invoke', now.entry),
      bareInvoke: async () => fresh('invoke', bare),
      whole: async () => fresh('whole', now.entry),
      bareWhole: async () => fresh('whole', bare),
    },
    pairs,
  );
  return [
    line('import of the scheduled handler ÷ of bare pg', all.alone.ms, all.bare.ms),
    line('the same with its driver', all.withDriver.ms, all.bare.ms),
    line('first invocation of a fresh process ÷ bare', all.invoke.ms, all.bareInvoke.ms),
    line('import and first invocation together ÷ bare', all.whole.ms, all.bareWhole.ms),
    line('resident memory after it ÷ bare (MB)', all.whole.rssMb, all.bareWhole.rssMb),
  ];
}

async function oldToNew(fresh: Ask, before: Bundle, now: Bundle, pairs: number): Promise<ColdLine[]> {
  const all = await measured(
    {
      oldImport: async () => fresh('import', before.entry),
      newImport: async () => fresh('import', now.entry),
      oldDriver: async () => fresh('import', before.entry, before.driver),
      newDriver: async () => fresh('import', now.entry, now.driver),
      oldInvoke: async () => fresh('invoke', before.entry),
      newInvoke: async () => fresh('invoke', now.entry),
      oldWhole: async () => fresh('whole', before.entry),
      newWhole: async () => fresh('whole', now.entry),
    },
    pairs,
  );
  return [
    line('import: new ÷ old', all.newImport.ms, all.oldImport.ms),
    line('import with driver: new ÷ old', all.newDriver.ms, all.oldDriver.ms),
    line('first invocation: new ÷ old', all.newInvoke.ms, all.oldInvoke.ms),
    line('import and first invocation: new ÷ old', all.newWhole.ms, all.oldWhole.ms),
    line('resident memory after it: new ÷ old (MB)', all.newWhole.rssMb, all.oldWhole.rssMb),
  ];
}

function line(what: string, ours: readonly number[], theirs: readonly number[]): ColdLine {
  return { what, ratio: ratio(ours, theirs), ours: spreadOf(ours), theirs: spreadOf(theirs) };
}

/** As infra/build.ts does it, for the recipe and for the code that measures. */
async function bundleBare(folder: string): Promise<string> {
  await bundle({
    entryPoints: [join(here, 'cold/bare.ts'), join(here, 'cold/fresh.ts')],
    outdir: folder,
    bundle: true,
    minify: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    outExtension: { '.js': '.mjs' },
    external: ['pg-native', 'cloudflare:sockets'],
    banner: { js: `import{createRequire as __r}from'node:module';const require=__r(import.meta.url);` },
  });
  return join(folder, 'bare.mjs');
}

async function bundleIn(folder: string): Promise<Bundle> {
  const driver = (await readdir(folder)).find((name) => /^(?:scheduled-)?client-.*\.js$/.test(name));
  if (driver === undefined) throw new Error(`${folder} has no chunk of a driver; build there first`);
  return { entry: join(folder, 'scheduled.js'), driver: join(folder, driver) };
}

async function bytesOf(
  { outputs }: Metafile,
  { driver }: Bundle,
): Promise<{ ours: number; oursWithDriver: number }> {
  const reach = new Set(['.build/scheduled.js']);
  // A set goes on to what is added to it meanwhile.
  for (const file of reach)
    for (const { path, kind } of outputs[file]?.imports ?? [])
      if (kind === 'import-statement') reach.add(path);
  const sizes = [...reach].map((file) => outputs[file]?.bytes ?? 0);
  const ours = sizes.reduce((sum, bytes) => sum + bytes, 0);
  return { ours, oursWithDriver: ours + (await readFile(driver)).length };
}
