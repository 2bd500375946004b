/** What `npm start` says to flags that can't be, before it starts anything. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));

it.each([
  [['--speed', '0'], '--speed is "0"; allowed: a whole number from 1 to 3600'],
  [['--speed', '1.5'], '--speed is "1.5"; allowed: a whole number from 1 to 3600'],
  [['--chaos', '--seed', 'x'], '--seed is "x"; allowed: a whole number from 0 to 4294967295'],
  [['--seed', '7'], '--seed means nothing without --chaos; give both'],
  [['--port', '99999'], '--port is "99999"; allowed: a whole number from 1 to 65535'],
  [['--speed', '-5'], "Option '--speed' argument is ambiguous; npm start -- --help explains them"],
  [['--haste'], 'there is no option --haste; known: --port, --lambda-port, '],
])('refuses %j in one line', async (flags, line) => {
  const start = join('infra', 'local', 'start.ts');
  const stdio = ['ignore', 'pipe', 'pipe'] as const;
  const child = spawn(process.execPath, ['--import', 'tsx', start, ...flags], {
    cwd: root,
    stdio: [...stdio],
  });
  const said = Promise.all([text(child.stdout), text(child.stderr)]);
  const [code] = (await once(child, 'exit')) as [number | null];
  const [stdout, stderr] = await said;
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr.trimEnd().split('\n')).toEqual([expect.stringContaining(`npm start: ${line}`)]);
});
