/** Who watches runs sees every step, and can break or slow none. */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { coordinate } from '../../src/coordinate.ts';
import { defineJob, type JobOptions } from '../../src/job.ts';
import type { Observer } from '../../src/observe/observer.ts';
import { coordinatorOn, deliveryFor, keepingLogger } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';

let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

const noon = '2026-11-29T12:00:00Z';
let made = 0;
const job = (work: JobOptions['work'], options: Partial<JobOptions> = {}) =>
  defineJob({ name: `job-${(made += 1)}`, ...options, work });

function watching(): Observer & { readonly seen: string[] } {
  const seen: string[] = [];
  return {
    name: 'watching',
    seen,
    claimed: ({ status }) => void seen.push(`claimed ${status}`),
    entered: ({ status }) => void seen.push(`entered ${status}`),
    performed: ({ status }, how) => void seen.push(`performed ${status} ${how}`),
    recorded: ({ status }) => void seen.push(`recorded ${status}`),
    published: ({ status }) => void seen.push(`published ${status}`),
  };
}

describe('every step is seen, in its order', () => {
  it.each([
    ['of a success', job(async () => 1), 'returned', 'succeeded'],
    ['of a failure', job(async () => Promise.reject(new Error('no'))), 'threw', 'failed'],
    [
      'of a run that is stopped',
      job(async ({ signal }) => sleep(5_000, undefined, { signal }), { timeoutMs: 100 }),
      'stopped',
      'timed_out',
    ],
  ])('%s', async (_, task, how, status) => {
    const observer = watching();
    await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url, { observers: [observer] }));
    expect(observer.seen).toEqual([
      'claimed running',
      'entered running',
      `performed running ${how}`,
      `recorded ${status}`,
      `published ${status}`,
    ]);
  });

  it('of a skip, which has no more of them', async () => {
    const task = job(async () => 1);
    await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
    const observer = watching();
    await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url, { observers: [observer] }));
    expect(observer.seen).toEqual(['claimed skipped', 'recorded skipped', 'published skipped']);
  });
});

const steps = ['claimed', 'entered', 'performed', 'recorded', 'published'] as const;

describe.each(steps)('one that goes wrong at %s', (step) => {
  it.each([
    [
      'throws',
      () => {
        throw new Error('mine');
      },
    ],
    ['gives a promise that fails', async () => Promise.reject(new Error('mine'))],
  ])('breaks nothing where it %s: it is a warning, and others see all', async (_, failing) => {
    const logger = keepingLogger();
    const other = watching();
    const observers = [{ name: 'broken', [step]: failing }, other];
    const run = await coordinate(
      deliveryFor(
        job(async () => 1),
        noon,
      ),
      60_000,
      coordinatorOn(db.url, { observers, logger }),
    );
    expect([run.status, other.seen.length]).toEqual(['succeeded', 5]);
    await sleep(0);
    expect(logger.lines).toContainEqual(
      expect.objectContaining({ level: 'warn', message: `the observer broken failed at ${step}` }),
    );
  });
});

it('one that takes long is told no more of that run, and of the next again', async () => {
  const logger = keepingLogger();
  let told = 0;
  const slow: Observer = {
    name: 'slow',
    claimed() {
      told += 1;
      const until = performance.now() + 120;
      while (performance.now() < until);
    },
    recorded: () => void (told += 100),
  };
  const coordinator = coordinatorOn(db.url, { observers: [slow], logger });
  for (const expected of [1, 2]) {
    told = told % 100;
    const run = await coordinate(
      deliveryFor(
        job(async () => 1),
        noon,
      ),
      60_000,
      coordinator,
    );
    expect([run.status, told]).toEqual(['succeeded', expected]);
  }
  expect(
    logger.lines.filter(({ level, message }) => level === 'warn' && /told no more/.test(message)),
  ).toHaveLength(2);
});

it('a logger that breaks breaks no run', async () => {
  const broken = () => {
    throw new Error('no disk');
  };
  const logger = { debug: broken, info: broken, warn: broken, error: broken };
  const run = await coordinate(
    deliveryFor(
      job(async () => 1),
      noon,
    ),
    60_000,
    coordinatorOn(db.url, { logger }),
  );
  expect(run.status).toBe('succeeded');
});
