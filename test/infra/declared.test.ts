/** Jobs that can't be declared, in a checkout of their own: one line, whichever command comes upon them. */
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { checkout, cleanUp, cli, osls, root, run } from '../support/local.ts';

/** On a busy machine the framework alone takes tens of seconds to load. */
const longMs = 240_000;
const file = 'functions/jobs/expire-sessions.ts';

let folder: string;
beforeAll(async () => void (folder = await checkout()));
afterAll(async () => {
  await cleanUp();
  await rm(folder, { recursive: true, force: true });
});

async function declare(from: string, to: string): Promise<void> {
  const original = await readFile(join(root, file), 'utf8');
  expect(original).toContain(from);
  await writeFile(join(folder, file), original.replace(from, to));
}

const faults = [
  ['schedule:', 'shedule:', `job "expire-sessions": there is no option "shedule"; did you mean schedule?`],
  [
    "schedule: 'rate(5 minutes)'",
    "schedule: { at: 'rate(5 minutes)', zone: 'UTC' }",
    `job "expire-sessions": there is no option of schedule "zone"; did you mean timeZone?`,
  ],
  [
    "name: 'expire-sessions'",
    "name: 'sweep'",
    'job "sweep": name is "sweep", which is the name of the sweep; choose another',
  ],
] as const;

const commands = [
  ['npm start', [...cli, 'dev']],
  ['duplicates', [...cli, 'duplicates', '--job', 'x', '--times', '1']],
  ['build', [...cli, 'build']],
  ['migrate', [...cli, 'migrate']],
] as const;

describe.each(faults)('H3: %s written as %s', (from, to, message) => {
  beforeAll(async () => declare(from, to));

  it.each(commands)('%s says it in one line', { timeout: longMs }, async (name, args) => {
    const started = run(args, { cwd: folder, env: { DATABASE_URL: 'postgres://nobody@127.0.0.1:9/none' } });
    expect([await started.ended, await started.stdout]).toEqual([1, '']);
    expect(await started.stderr).toBe(`${name}: ${file}:3: ${message}\n`);
  });
});

it.each([
  ['package', faults[0]],
  ['offline', faults[2]],
] as const)(
  'H3: serverless %s says it in one line',
  { timeout: longMs },
  async (command, [from, to, message]) => {
    await declare(from, to);
    const started = run([osls, command], { cwd: folder });
    expect([await started.ended, await started.stdout]).toEqual([1, '']);
    expect(await started.stderr).toBe(`serverless: ${file}:3: ${message}\n`);
  },
);

it('H3: names the registry’s file where only that is wrong', { timeout: longMs }, async () => {
  const original = await readFile(join(root, file), 'utf8');
  await writeFile(join(folder, file), original);
  const index = await readFile(join(root, 'functions/jobs/index.ts'), 'utf8');
  await writeFile(
    join(folder, 'functions/jobs/index.ts'),
    index.replace('...examples]', '...examples, ...examples]'),
  );
  const started = run([...cli, 'build'], { cwd: folder });
  expect(await started.ended).toBe(1);
  expect(await started.stderr).toMatch(
    /^build: functions\/jobs\/index\.ts:\d+: two jobs are named "expire-sessions"; rename one\n$/,
  );
});
