/** What commands say to options that can't be, before they start anything, and what they say of themselves. */
import { describe, expect, it } from 'vitest';
import { readFlags } from '../../infra/cli/flags.ts';
import { cli, run } from '../support/local.ts';

/** On a busy machine a process takes seconds to load. */
const longMs = 60_000;

it.each([
  [['--speed', '0'], '--speed is "0"; allowed: a whole number from 1 to 3600'],
  [['--chaos', '--seed', 'x'], '--seed is "x"; allowed: a whole number from 0 to 4294967295'],
  [['--seed', '7'], '--seed means nothing without --chaos; give both'],
  [['--port', '99999'], '--port is "99999"; allowed: a whole number from 1 to 65535'],
  [
    ['--port', '4000', '--lambda-port', '4000'],
    '--port and --lambda-port are both 4000; they need a port each',
  ],
  [['--speed', '-5'], "Option '--speed' argument is ambiguous; npm start -- --help explains them"],
  [['--caos'], 'there is no option --caos; did you mean --chaos?'],
])('I7: npm start refuses %j in one line', { timeout: longMs }, async (flags, line) => {
  const start = run([...cli, 'dev', ...flags]);
  expect([await start.ended, await start.stdout]).toEqual([2, '']);
  expect(await start.stderr).toBe(`npm start: ${line}\n`);
});

it('I7: refuses one port for two where the environment says so', { timeout: longMs }, async () => {
  const start = run([...cli, 'dev', '--port', '3002'], { env: { LAMBDA_PORT: '3002' } });
  expect(await start.ended).toBe(2);
  expect(await start.stderr).toBe(
    'npm start: --port and --lambda-port are both 3002; they need a port each\n',
  );
});

it.each([
  ['npm start', [...cli, 'dev'], '--lambda-port N'],
  ['npm run duplicates', [...cli, 'duplicates'], '--times N'],
  ['npm run migrate', [...cli, 'migrate'], '--examples'],
  ['npm run build', [...cli, 'build'], '--help'],
  ['npm run faults', ['--import', 'tsx', 'test/faults/campaign.ts'], '--row NAME'],
  ['npm run simulate', ['--import', 'tsx', 'test/simulation/simulate.ts'], '--days N'],
  ['npm run schedules', ['--import', 'tsx', 'test/schedules/schedules.ts'], '--rounds N'],
])('I7: %s -- --help explains its options', { timeout: longMs }, async (name, args, option) => {
  const help = run([...args, '--help']);
  expect([await help.ended, await help.stderr]).toEqual([0, '']);
  const said = await help.stdout;
  expect(said.startsWith(`${name} [-- OPTIONS]: `)).toBe(true);
  expect(said).toContain(`\n  ${option}`);
});

describe('I7: options of any command', () => {
  const command = {
    name: 'npm run it',
    says: 'does it',
    flags: {
      'lambda-port': { value: 'N', says: 'a port' },
      row: { value: 'NAME', many: true, says: 'a row' },
      json: { says: 'as JSON' },
    },
  } as const;
  const saidOf = (...args: string[]) => {
    try {
      return readFlags(command, args);
    } catch (error) {
      return (error as Error).message;
    }
  };

  it('are read by their table', () => {
    expect(saidOf('--row', 'a', '--row=b', '--json', '--lambda-port', '1')).toEqual({
      'lambda-port': '1',
      row: ['a', 'b'],
      json: true,
    });
    expect(saidOf()).toEqual({});
  });

  it.each([
    [['--lambdaPort', '1'], 'there is no option --lambdaPort; did you mean --lambda-port?'],
    [['--jsn=1'], 'there is no option --jsn; did you mean --json?'],
    [['--HELP'], 'there is no option --HELP; did you mean --help?'],
    [
      ['--zzzz'],
      'there is no option --zzzz; known: --lambda-port, --row, --json, --help; npm run it -- --help explains them',
    ],
    [['--row'], "Option '--row <value>' argument missing; npm run it -- --help explains them"],
    [['--json=1'], "Option '--json' does not take an argument; npm run it -- --help explains them"],
    [['stray'], expect.stringMatching(/^Unexpected argument 'stray'.*; npm run it -- --help explains them$/)],
    [['-x'], expect.stringMatching(/^Unknown option '-x'.*; npm run it -- --help explains them$/)],
  ])('%j is refused in one line', (args, message) => {
    expect(saidOf(...args)).toEqual(message);
  });

  it('are explained, whatever else is asked for', () => {
    const help = `npm run it [-- OPTIONS]: does it

  --lambda-port N  a port
  --row NAME       a row
  --json           as JSON
  --help           explains them`;
    expect(saidOf('--help')).toBe(help);
    expect(saidOf('--zzzz', '-h')).toBe(help);
  });
});
