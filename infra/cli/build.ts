/** `npm run build`, or `npx cronce build`: the bundles, and what each function can come to load. */
import { build as bundle, kilobytesOf } from '../build.ts';
import { openProject } from '../project.ts';
import { asTyped, readFlags } from './flags.ts';

const command = {
  name: asTyped('npm run build', 'npx cronce build'),
  says: 'bundles the functions to .build/',
  flags: {},
} as const;

export async function build(args: readonly string[]): Promise<number> {
  const began = performance.now();
  readFlags(command, args);
  const { root } = await openProject(process.cwd()); // what can't be loaded would fail in each function
  const built = await bundle(root);
  for (const [file, { entryPoint }] of Object.entries(built.metafile.outputs))
    if (entryPoint?.startsWith('functions/'))
      console.log(`${file}  ${kilobytesOf(file, built)} KB with all it can load`);
  console.log(`built in ${Math.round(performance.now() - began)} ms`);
  return 0;
}
