/** `npm run faults -- --prove` breaks the code line by line; each of these lines must be there, and the test that is to notice. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { breaks } from './prove.ts';
import { root } from '../support/checkout.ts';

it.each(breaks)(
  '$promise: its line is there once, and so is its test',
  async ({ file, edits, red: [test] }) => {
    const text = await readFile(join(root, file), 'utf8');
    for (const [find] of edits) expect(text.split(find)).toHaveLength(2);
    await expect(readFile(join(root, `test/${test}.test.ts`), 'utf8')).resolves.not.toBe('');
  },
);
