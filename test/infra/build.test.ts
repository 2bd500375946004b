import { execFile } from 'node:child_process';
import { cp, symlink, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import type { Metafile } from 'esbuild';
import { beforeAll, describe, expect, it } from 'vitest';
import { build, buildFolderOf } from '../../infra/build.ts';
import { budgetKb } from '../support/budget.ts';
import { root } from '../support/checkout.ts';
import { scratchFolder } from '../support/scratch.ts';

const buildFolder = buildFolderOf(root);

let outputs: Metafile['outputs'];
beforeAll(async () => {
  ({
    metafile: { outputs },
  } = await build(root));
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

/** What a process of its own prints that runs a text, as a module, in a copy of the bundle. */
async function inACopy(text: string, env: NodeJS.ProcessEnv, without = /^$/): Promise<string> {
  const folder = await scratchFolder();
  const { path } = folder;
  try {
    await cp(buildFolder, path, { recursive: true, filter: (file) => !without.test(basename(file)) });
    await symlink(join(buildFolder, '../node_modules'), join(path, 'node_modules')); // what is not bundled
    await writeFile(join(path, 'try.js'), text);
    const { stdout, stderr } = await promisify(execFile)(process.execPath, ['try.js'], {
      cwd: path,
      env: { ...process.env, ...env },
    });
    return stdout + stderr;
  } finally {
    await folder.remove();
  }
}

const nowhere = 'postgres://nobody:secret@127.0.0.1:9/none';
const drivers = [
  ['pg', { DATABASE_URL: nowhere }, /-client-.*\.js$/],
  ['neon', { DATABASE_URL: nowhere, CRONCE_DRIVER: 'neon' }, /-serverless-.*\.js$/],
] as const;

describe.each(['scheduled', 'sweep'])('%s, while it is loaded,', (entry) => {
  it('makes no clock of any zone, which would take as long as all the rest', async () => {
    // One of the registry's jobs has a zone. What is asked of Intl is listed.
    const listing = `const asked = [];
      for (const name of Object.getOwnPropertyNames(Intl)) {
        const own = Intl[name];
        Intl[name] = function (...given) { asked.push(name); return new.target ? new own(...given) : own(...given); };
      }
      const { handler } = await import('./${entry}.js');
      console.log(typeof handler, ...asked);`;
    expect(await inACopy(listing, { DATABASE_URL: nowhere })).toBe('function supportedValuesOf\n');
  });

  it.each(drivers)('begins to load the driver that its URL asks for: %s', async (_, env, chunk) => {
    const listing = `import { readdirSync, writeFileSync } from 'node:fs';
      await import('./${entry}.js');
      process.once('beforeExit', async () => {
        const [file] = readdirSync('.').filter((name) => name.startsWith('${entry}-') && ${String(chunk)}.test(name));
        writeFileSync(file, 'console.log("only now")'); // who has loaded it already won't read this
        await import('./' + file);
        console.log('loaded');
      });`;
    expect(await inACopy(listing, env)).toBe('loaded\n');
  });

  const delivering = `import { handler } from './${entry}.js';
    await new Promise((resolve) => setTimeout(resolve, 100));
    const context = { awsRequestId: 'one', getRemainingTimeInMillis: () => 5_000 };
    const event = { cronce: { job: '${entry === 'sweep' ? 'sweep' : 'expire-sessions'}', trigger: 'manual', slot: 'manual:1' } };
    await handler(event, context).catch((error) => console.log(error.name + ': ' + error.message));`;

  it.each(drivers)('leaves it to the invocation to say that %s can’t be loaded', async (_, env, chunk) => {
    const said = await inACopy(delivering, { ...env, CRONCE_LOG_LEVEL: 'ERROR' }, chunk);
    expect(said).toMatch(
      /^CannotConnect: DATABASE_URL cannot be used \(Cannot find module .*\): correct it$/m,
    );
    expect(said).not.toMatch(/unhandled/i);
  });

  it('and that a setting is wrong', async () => {
    const said = await inACopy(delivering, { DATABASE_URL: 'mysql://x' });
    expect(said).toBe('SettingsError: DATABASE_URL is not one; allowed: a postgres:// URL\n');
  });
});

it('makes the clock of its own job’s zone while it is loaded, not in an invocation', async () => {
  const listing = `const own = Intl.DateTimeFormat;
    Intl.DateTimeFormat = function (...given) { console.log(given[1].timeZone); return new own(...given); };
    await import('./scheduled.js');`;
  const said = await inACopy(listing, { DATABASE_URL: nowhere, CRONCE_JOB: 'roll-up-statistics' });
  expect(said).toBe('Europe/Berlin\n');
});
