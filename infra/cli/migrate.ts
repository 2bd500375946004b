/** `npm run migrate`, or `npx cronce migrate`: the schema of a database, before the code that needs it. */
import { readSettings } from '../../src/settings.ts';
import { migrate as apply } from '../migrate.ts';
import { exampleMigrationsOf, openProject } from '../project.ts';
import { asTyped, readFlags } from './flags.ts';

const command = {
  name: asTyped('npm run migrate', 'npx cronce migrate'),
  says: 'brings the schema cronce of DATABASE_URL up to date; any number may start at once',
  flags: {
    examples: { says: 'also makes the tables of the example jobs, in the schema app with sample rows' },
  },
} as const;

export async function migrate(args: readonly string[]): Promise<number> {
  const flags = readFlags(command, args);
  // A schema is migrated for code that is about to be deployed: better no part of it than half.
  const { root } = await openProject(process.cwd());
  const { target, deployment: named } = readSettings();
  const deployment = process.env['CRONCE_DEPLOYMENT'] ? named : undefined;
  const examples = flags.examples === true ? exampleMigrationsOf(root) : undefined;
  const applied = await apply(target.url, { examples, deployment, log: console.log });
  if (applied.length === 0) console.log('the schema is up to date');
  return 0;
}
