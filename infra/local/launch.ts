/**
 * `npm start`: loads start.ts, and with it every job of this checkout. One that can't be declared is an error of
 * loading, before anything there could catch it; here it is one line, like any other that keeps `npm start` from starting.
 */
import { JobError } from '../../src/options.ts';

await import('./start.ts').catch((error: unknown) => {
  const isPlain = error instanceof JobError;
  console.error(
    `npm start: ${isPlain ? error.message : error instanceof Error ? error.stack : String(error)}`,
  );
  process.exitCode = 1;
});
