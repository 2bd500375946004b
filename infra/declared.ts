/**
 * Where a job was declared that can't be. Jobs are declared when their files are loaded, so that is an error of loading,
 * and only its stack knows the file.
 */
import { join, sep } from 'node:path';

/** An error of ours with its place before it; any other as it is. By name: the class is that of the loaded bundle. */
export function located(error: unknown): unknown {
  if (!(error instanceof Error) || error.name !== 'JobError') return error;
  const place = placeIn(error.stack ?? '');
  if (place !== undefined) {
    error.message = `${place}: ${error.message}`;
    error.stack = error.message;
  }
  return error;
}

/**
 * The file and line of the innermost frame that is of a job's file, or of the registry. By the end of its path: where it
 * begins is told from where the bundle lay, which may be beyond a link.
 */
function placeIn(stack: string): string | undefined {
  const jobs = join('functions', 'jobs') + sep;
  for (const line of stack.split('\n')) {
    const [, file = '', at] = /([^\s()]+\.[cm]?tsx?):(\d+):\d+\)?$/.exec(line) ?? [];
    const from = file.lastIndexOf(jobs);
    if (from >= 0) return `${file.slice(from)}:${at}`;
  }
  return undefined;
}

/** Enough for every way from a job's file to the option that is wrong. */
export function keepLongStacks(): void {
  Error.stackTraceLimit = Math.max(Error.stackTraceLimit, 50);
}
