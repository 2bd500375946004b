/**
 * `npm start` and `npm run duplicates`: loads the command, and with it every job of this checkout. One that can't be
 * declared is an error of loading, before anything there could catch it; here it is one line, like any other that keeps
 * a command from starting.
 */
import { loadJobs } from '../declared.ts';
import { lineOf } from '../terminal.ts';

const commands = {
  start: { name: 'npm start', load: async () => import('./start.ts') },
  duplicates: { name: 'duplicates', load: async () => import('./duplicates.ts') },
};

const [asked] = process.argv.splice(2, 1);
const { name, load } = asked === 'duplicates' ? commands.duplicates : commands.start;

try {
  await loadJobs();
} catch (error) {
  const isPlain = error instanceof Error && ['JobError', 'LockNameError'].includes(error.name);
  console.error(`${name}: ${isPlain || !(error instanceof Error) ? lineOf(error) : error.stack}`);
  process.exit(1);
}
await load();
