import { expect, it } from 'vitest';
import { outcomeLine } from '../../infra/local/outcomes.ts';
import { lineOf, visible } from '../../infra/terminal.ts';
import type { RunRecord } from '../../src/run.ts';

it.each([
  ['plain text, Ünïcode, 日本語 and 👩‍👩‍👧 too', 'plain text, Ünïcode, 日本語 and 👩‍👩‍👧 too'],
  ['\u001b[31mred\u001b[0m', '\\u001b[31mred\\u001b[0m'],
  ['\u001b]0;title\u0007', '\\u001b]0;title\\u0007'],
  ['a\tb\rc\nd\u0000', 'a\\u0009b\\u000dc\\u000ad\\u0000'],
  ['\u007f and C1 \u0080\u009b31m\u009f', '\\u007f and C1 \\u0080\\u009b31m\\u009f'],
  [
    '\u202etxt.exe\u202c \u2066x\u2069 \u200e\u200f\u061c',
    '\\u202etxt.exe\\u202c \\u2066x\\u2069 \\u200e\\u200f\\u061c',
  ],
  ['\u2028\u2029\ufeff', '\\u2028\\u2029\\ufeff'],
  ['half \ud83d', 'half \\ud83d'],
])('I7: shows %j visibly', (text, shown) => {
  expect(visible(text)).toBe(shown);
});

it('I7: an error is one line', () => {
  expect(lineOf(new Error('first \u001b[1m\n    at second'))).toBe('first \\u001b[1m');
  expect(lineOf('\u0007')).toBe('\\u0007');
});

it.each([
  ['message', { error: { name: 'Error', message: 'a\u001b[2Jb\u202e' } }, 'a\\u001b[2Jb\\u202e'],
  ['output', { status: 'succeeded', output: { note: '\u009b31m\u007f' } }, '{"note":"\\u009b31m\\u007f"}'],
  ['slot', { slot: 'manual:\u001bc' }, 'manual:\\u001bc'],
  ['job', { job: 'j\u0008\u0008' }, 'j\\u0008\\u0008'],
])('I7: an outcome’s line obeys nothing of its %s', (_, part, shown) => {
  const at = '2026-11-29T12:00:00.000Z';
  const plain = { job: 'j', slot: at, status: 'failed', skipReason: null, attempt: 1, maxAttempts: 3 };
  const times = { scheduledFor: at, receivedAt: at, startedAt: at, finishedAt: at };
  const none = { output: null, error: null, blockedBy: null, trigger: 'manual' };
  const run = { ...plain, ...times, ...none, ...part } as unknown as RunRecord;
  const line = outcomeLine(run, { colour: false, jobWidth: 4 });
  expect(line).toContain(shown);
  // eslint-disable-next-line no-control-regex -- they are what is looked for
  expect(line).not.toMatch(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e]/);
});
