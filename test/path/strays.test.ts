import { execFile } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { owningStrays } from '../../src/path/strays.ts';
import { keepingLogger } from '../support/coordinator.ts';

const run = promisify(execFile);
const root = path.join(import.meta.dirname, '../..');

/** In a process of its own, as the runner listens for unhandled rejections itself. */
async function processOf(body: string): Promise<{ code: unknown; stdout: string; stderr: string }> {
  const script = `
    import { setTimeout as delay } from 'node:timers/promises';
    import { owningStrays } from './src/path/strays.ts';
    const say = (word) => console.log(word);
    const warn = (word, { error }) => {
      if (error?.shown === false) throw new Error('cannot show it');
      say(word);
    };
    const logger = { debug: say, info: say, warn, error: say };
    const told = (work) => owningStrays({ logger, about: {} }, work).then(say, (error) => say('failed by ' + (error?.message ?? error)));
    ${body}
    await delay(50);
    say('alive');`;
  const args = ['--import', 'tsx', '--input-type=module', '--eval', script];
  return run(process.execPath, args, { cwd: root }).then(
    (done) => ({ code: 0, ...done }),
    (error: unknown) => error as { code: unknown; stdout: string; stderr: string },
  );
}

describe('a promise that nobody awaited', () => {
  it.each([
    ['rejected at once', `void Promise.reject(new Error('stray'))`],
    ['after a while', `void (async () => { await delay(5); throw new Error('stray'); })()`],
    ['by a timer', `new Promise((_, no) => setTimeout(() => no(new Error('stray')), 5))`],
    ['in a chain', `Promise.resolve().then(() => { throw new Error('stray'); })`],
    ['with what no logger can show', `Promise.reject(Object.assign(new Error('stray'), { shown: false }))`],
    ['of all of several', `Promise.all([Promise.reject(new Error('stray')), delay(1)])`],
  ])('%s fails its run with its error, and ends no process', async (_how, stray) => {
    const { code, stdout } = await processOf(
      `await told(async () => { ${stray}; await delay(20); return 'done'; });`,
    );
    expect([code, stdout.split('\n').slice(1)]).toEqual([0, ['failed by stray', 'alive', '']]);
  });

  it('leaves the work’s own error in front', async () => {
    const { stdout } = await processOf(
      `await told(async () => { void Promise.reject(new Error('stray')); await delay(5); throw new Error('own'); });`,
    );
    expect(stdout).toContain('failed by own');
  });

  it('is told by the log where it comes after the end', async () => {
    const { code, stdout } = await processOf(
      `await told(async () => { void delay(20).then(() => { throw new Error('late'); }); return 'done'; });`,
    );
    expect(code).toBe(0);
    expect(stdout.split('\n')).toEqual(['done', expect.stringContaining('after the end'), 'alive', '']);
  });

  it('of nobody’s work ends the process as ever', async () => {
    const { code, stderr } = await processOf(
      `await told(async () => 'done'); void Promise.reject(new Error('not a job’s'));`,
    );
    expect(code).toBe(1);
    expect(stderr).toContain('not a job’s');
  });

  it('of nobody’s work reaches the listeners that were there, and a run’s does not', async () => {
    const { code, stdout } = await processOf(`
      process.on('unhandledRejection', (reason) => say('theirs: ' + reason.message));
      await told(async () => { void Promise.reject(new Error('ours')); });
      void Promise.reject(new Error('other'));`);
    expect(code).toBe(0);
    expect(stdout).toContain('failed by ours');
    expect(stdout).toContain('theirs: other');
    expect(stdout).not.toContain('theirs: ours');
  });

  it('fails its own run only, of several at once', async () => {
    const told = { logger: keepingLogger(), about: {} };
    const results = await Promise.allSettled([
      owningStrays(told, async () => delay(30, 'innocent')),
      owningStrays(told, async () => {
        void delay(5).then(() => Promise.reject(new Error('stray')));
        return delay(30, 'guilty');
      }),
      owningStrays(told, async () => delay(30, 'innocent')),
    ]);
    expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
  });

  it('and is handled before the end does no harm', async () => {
    const later = owningStrays({ logger: keepingLogger(), about: {} }, async () => {
      const failing = Promise.reject(new Error('handled'));
      await once(process, 'unhandledRejection');
      return failing.catch(() => 'caught');
    });
    expect(await later).toBe('caught');
  });
});
