import { execFile, spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import type { Seen } from '../support/namespace.ts';

/** Why there can be no network of our own here; null where there can. */
function hindrance(): string | null {
  if (process.getuid?.() !== 0) return 'needs root, for a network namespace of its own';
  const { status } = spawnSync('unshare', ['-n', 'ip', 'link', 'set', 'lo', 'up']);
  return status === 0 ? null : 'needs `unshare` and `ip`, and the right to use them';
}

it('a server whose own TCP limits are shorter than the lease leaves a silent holder its lock for the lease, not for good', async ({
  skip,
}) => {
  const why = hindrance();
  if (why !== null) skip(why);
  const script = fileURLToPath(new URL('../support/namespace.ts', import.meta.url));
  const { stdout } = await promisify(execFile)('unshare', [
    '-n',
    process.execPath,
    '--import',
    'tsx',
    script,
  ]);
  const seen = JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as Seen;
  expect(seen.together).toEqual([]);
  expect(seen.leadMs, 'it had stopped when its lock came free').toBeGreaterThan(0);
  // Its job had turned the idle limit off, and no heartbeat could set it again: then TCP's limits end it.
  expect(seen.idleOffEnd).toBe('by TCP');
  expect(seen.idleOffMs).toBeGreaterThanOrEqual(4_500);
}, 120_000);
