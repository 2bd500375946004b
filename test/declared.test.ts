import { execFile } from 'node:child_process';
import { cp, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));
const osls = createRequire(import.meta.url).resolve('serverless/bin/serverless.js');

describe('H3: a job that can’t be declared, in a checkout of its own', () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'cronce-declared-'));
    for (const part of ['src', 'infra', 'functions', 'package.json', 'tsconfig.json', 'serverless.yml'])
      await cp(join(root, part), join(folder, part), { recursive: true });
    await symlink(join(root, 'node_modules'), join(folder, 'node_modules'));
  });
  afterAll(async () => rm(folder, { recursive: true, force: true }));

  const declare = async (from: string, to: string) => {
    const original = await readFile(join(root, 'src/jobs/expire-sessions.ts'), 'utf8');
    await writeFile(join(folder, 'src/jobs/expire-sessions.ts'), original.replace(from, to));
  };

  it.each([
    ['schedule:', 'shedule:', 'job "expire-sessions": there is no option "shedule"; did you mean schedule?'],
    [
      "name: 'expire-sessions'",
      "name: 'sweep'",
      'a job is named "sweep", which is the name of the sweep; rename it',
    ],
  ])('%s written as %s', { timeout: 60_000 }, async (from, to, message) => {
    await declare(from, to);
    const started = await ran(folder, ['--import', 'tsx', 'infra/local/launch.ts']);
    expect(started).toEqual({ code: 1, stdout: '', stderr: `npm start: ${message}\n` });
    const packaged = await ran(folder, [osls, 'package']);
    expect(packaged.code).toBe(1);
    expect(packaged.stdout + packaged.stderr).toContain(`errored with: ${message}`);
    expect(packaged.stdout + packaged.stderr).not.toMatch(/\n\s+at /);
  });
});

interface Ended {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

async function ran(cwd: string, args: readonly string[]): Promise<Ended> {
  const env = { PATH: process.env['PATH'], HOME: process.env['HOME'] };
  return new Promise((resolve) => {
    execFile(process.execPath, args, { cwd, env, timeout: 50_000 }, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : Number(error.code), stdout, stderr });
    });
  });
}
