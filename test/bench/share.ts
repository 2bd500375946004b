/**
 * A share of one core, as a Lambda function of 256 MB has (it gets a whole one at 1,769 MB): by a control group of Linux, in
 * which a process is started. Needs root.
 */
import { mkdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';

export const sevenths = 256 / 1_769;
/** Short, as Lambda's is: so that a process is stopped often, and not seldom and long. */
const periodUs = 20_000;

export interface Share {
  readonly how: string;
  /** What a command is put behind. */
  readonly prefix: readonly string[];
  remove(): Promise<void>;
}

/** Undefined where none can be had. */
export async function shareOfACore(share: number): Promise<Share | undefined> {
  const quotaUs = Math.round(share * periodUs);
  return (await second(quotaUs).catch(() => undefined)) ?? first(quotaUs).catch(() => undefined);
}

async function second(quotaUs: number): Promise<Share> {
  const root = '/sys/fs/cgroup';
  const controllers = await readFile(join(root, 'cgroup.controllers'), 'utf8');
  if (!controllers.split(/\s/).includes('cpu')) throw new Error('no control of the processor');
  await writeFile(join(root, 'cgroup.subtree_control'), '+cpu');
  return group(root, 'control group (v2), cpu.max', [['cpu.max', `${quotaUs} ${periodUs}`]]);
}

async function first(quotaUs: number): Promise<Share> {
  return group('/sys/fs/cgroup/cpu', 'control group (v1), cpu.cfs_quota_us', [
    ['cpu.cfs_period_us', String(periodUs)],
    ['cpu.cfs_quota_us', String(quotaUs)],
  ]);
}

async function group(
  root: string,
  how: string,
  settings: readonly (readonly [string, string])[],
): Promise<Share> {
  const folder = join(root, `cronce-bench-${process.pid}`);
  await mkdir(folder);
  try {
    for (const [file, value] of settings) await writeFile(join(folder, file), value);
  } catch (error) {
    await rmdir(folder);
    throw error;
  }
  return {
    how,
    prefix: ['/bin/sh', '-c', 'echo $$ > "$0/cgroup.procs" && exec "$@"', folder],
    remove: async () => rmdir(folder),
  };
}
