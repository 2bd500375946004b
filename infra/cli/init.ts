/** `npx cronce init`: what a project needs to have Cronce beside whatever it has. */
import { mkdir, readdir, readFile } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeNew } from '../files.ts';
import { visible } from '../terminal.ts';
import { readFlags } from './flags.ts';

const command = {
  name: 'npx cronce init',
  says: 'writes functions, a first job and its test, serverless.yml, tsconfig.json; touches nothing that is there',
  flags: {},
} as const;

const template = fileURLToPath(new URL('./template/', import.meta.url));

/** What can't go by its own name in a package. */
const writtenAs: Readonly<Record<string, string>> = {
  'env.example': '.env.example',
  gitignore: '.gitignore',
};

export async function init(args: readonly string[]): Promise<number> {
  readFlags(command, args);
  const root = process.cwd();
  const service = await serviceNameFor(root);
  let kept = false;
  for (const file of await filesOf(template)) {
    const name = writtenAs[file] ?? file;
    const text = await readFile(join(template, file), 'utf8');
    await mkdir(dirname(join(root, name)), { recursive: true });
    const isNew = await writeNew(join(root, name), text.replace('SERVICE', service));
    console.log(`${isNew ? 'wrote' : 'kept '}  ${name}`);
    kept ||= !isNew && name === 'serverless.yml';
  }
  console.log(kept ? besideYours : nextSteps);
  return 0;
}

async function filesOf(folder: string): Promise<readonly string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(folder.length))
    .sort();
}

/** After the package, or the folder; AWS takes letters, digits and hyphens, and `-dev` and the job's name come behind it. */
async function serviceNameFor(root: string): Promise<string> {
  const named = await readFile(join(root, 'package.json'), 'utf8').then(
    (text) => (JSON.parse(text) as { name?: unknown }).name,
    () => undefined,
  );
  const from = typeof named === 'string' ? named : basename(resolve(root));
  const name = from
    .replace(/^@[^/]*\//, '')
    .replace(/[^a-zA-Z0-9]+/g, '-')
    .replace(/^[^a-zA-Z]+|-+$/g, '')
    .slice(0, 24)
    .replace(/-+$/, '');
  return visible(name || 'jobs');
}

const nextSteps = `
npx cronce dev     the coordinator on this machine: database, schedules firing, HTTP and page
                   on http://localhost:3000, with a token that it prints

For types and the test: npm install --save-dev typescript @types/node tsx, then
npx tsc && npx tsx --test test/*.test.ts`;

const besideYours = `
Your serverless.yml is as it was. Add the plugin to it, before serverless-offline if you have that:

plugins:
  - cronce/serverless
  - serverless-offline

and start all of it with npx cronce dev.`;
