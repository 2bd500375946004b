/**
 * Folders for databases that live no longer than a test run. In memory where there is plenty of it: a database is
 * some 300 files, and on a busy disk making one takes ten times as long.
 */
import { spawn } from 'node:child_process';
import { chmod, mkdtemp, rm, statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';

export interface ScratchFolder {
  readonly path: string;
  remove(): Promise<void>;
}

const PLENTY_BYTES = 4 * 1024 ** 3;

export async function scratchFolder(): Promise<ScratchFolder> {
  const folder = await mkdtemp(path.join(await scratchRoot(), 'cronce-test-'));
  // Where root runs the tests, the database server still runs as another user.
  await chmod(folder, 0o711);
  const forget = removeWhenWeDie(folder);
  return {
    path: folder,
    async remove() {
      forget();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

async function scratchRoot(): Promise<string> {
  if (process.env['TMPDIR'] !== undefined) return tmpdir();
  const memory = await statfs('/dev/shm').catch(() => undefined);
  return memory !== undefined && memory.bavail * memory.bsize > PLENTY_BYTES ? '/dev/shm' : tmpdir();
}

/** Should the run be killed: the pipe closes with our process, and the servers in there get time to end first. */
function removeWhenWeDie(folder: string): () => void {
  const remover = spawn('/bin/sh', ['-c', 'read -r _; sleep 5; rm -rf -- "$0"', folder], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  remover.on('error', () => undefined);
  remover.unref();
  return () => remover.kill('SIGKILL');
}
