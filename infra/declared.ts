/**
 * Where a job was declared that can't be. Jobs are declared when their files are loaded, so that is an error of loading,
 * and only its stack knows the file.
 */
import { join, sep } from 'node:path';

/** An error of ours with its place before it; any other as it is. By name: the class is that of the loaded bundle. */
export function located(error: unknown, root: string): unknown {
  if (!(error instanceof Error) || error.name !== 'JobError') return error;
  const place = placeIn(error.stack ?? '', root);
  if (place !== undefined) {
    error.message = `${place}: ${error.message}`;
    error.stack = error.message;
  }
  return error;
}

/** The file and line of the innermost frame that is of a job's file, or of the registry. */
function placeIn(stack: string, root: string): string | undefined {
  const jobs = join('functions', 'jobs') + sep;
  for (const line of stack.split('\n')) {
    const [, file, at] = /([^\s()]+\.[cm]?tsx?):(\d+):\d+\)?$/.exec(line) ?? [];
    const from = file?.lastIndexOf(jobs) ?? -1;
    if (file !== undefined && at !== undefined && from >= 0 && isOf(file, root))
      return `${file.slice(from)}:${at}`;
  }
  return undefined;
}

/** Paths in a source map may be relative to its bundle. */
function isOf(file: string, root: string): boolean {
  return (
    !file.includes(`${sep}node_modules${sep}cronce${sep}`) && (file.includes(root) || !file.startsWith(sep))
  );
}

/** Enough for every way from a job's file to the option that is wrong. */
export function keepLongStacks(): void {
  Error.stackTraceLimit = Math.max(Error.stackTraceLimit, 50);
}
