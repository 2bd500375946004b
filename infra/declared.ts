/**
 * Where a job was declared that can't be. Jobs are declared when their files are loaded, so that is an error of loading,
 * and only its stack knows the file.
 */
import { JobError } from '../src/options.ts';

/** An error of ours with its place before it; any other as it is. */
export function located(error: unknown): unknown {
  if (!(error instanceof JobError)) return error;
  const place = placeIn(error.stack ?? '');
  if (place === undefined) return error;
  const message = `${place}: ${error.message}`;
  return Object.assign(new JobError(message, { cause: error }), { stack: message });
}

/** The file and line of the innermost frame that is of a job's file, or of the registry. */
function placeIn(stack: string): string | undefined {
  const [, file, line] = /\/(src\/jobs\/[^\n():]+\.ts):(\d+):\d+\)?$/m.exec(stack) ?? [];
  return file && `${file}:${line}`;
}

/** Enough for every way from a job's file to the option that is wrong. */
export function keepLongStacks(): void {
  Error.stackTraceLimit = 50;
}

/**
 * The jobs of this checkout.
 * @throws {JobError} that names file, job and option
 */
export async function loadJobs(): Promise<typeof import('./jobs.ts')> {
  keepLongStacks();
  return import('./jobs.ts').catch((error: unknown) => {
    throw located(error);
  });
}
