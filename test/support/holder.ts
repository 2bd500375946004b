/** A process with one delivery, for `startHolder`: what must be blocked or killed for good can't be in the tests' own. */
import { setTimeout as delay } from 'node:timers/promises';
import { coordinate } from '../../src/coordinate.ts';
import { defineJob, type JobOptions, type WorkContext } from '../../src/job.ts';
import { coordinatorOn, deliveryFor } from './coordinator.ts';

export interface HolderOrder {
  readonly url: string;
  readonly slot: string;
  readonly job: Omit<JobOptions, 'work' | 'lock'>;
  /** Computes for so long without a pause, and then checks; sleeps inside `fenced`; or only says that it works. */
  readonly work: { readonly blockMs: number } | { readonly fencedSql: string } | 'say';
}

export type HolderWord =
  | { readonly kind: 'inside' }
  | { readonly kind: 'passed'; readonly at: number }
  | { readonly kind: 'refused'; readonly why: string }
  | { readonly kind: 'over'; readonly outcome: string };

function say(word: HolderWord): void {
  process.send?.(word);
}

async function perform({ work }: HolderOrder, { check, fenced }: WorkContext): Promise<void> {
  say({ kind: 'inside' });
  if (work === 'say') return;
  if ('fencedSql' in work) {
    await fenced((tx) => tx.query(work.fencedSql));
    return;
  }
  await delay(100); // the word goes out
  const end = Date.now() + work.blockMs;
  while (Date.now() < end);
  try {
    check();
    say({ kind: 'passed', at: Date.now() });
  } catch (error) {
    say({ kind: 'refused', why: String(error) });
  }
}

const order = JSON.parse(process.argv[2] ?? '') as HolderOrder;
const task = defineJob({ ...order.job, work: async (context) => perform(order, context) });
const end = await coordinate(deliveryFor(task, order.slot), 120_000, coordinatorOn(order.url)).catch(String);
say({ kind: 'over', outcome: typeof end === 'string' ? end : end.status });
process.disconnect();
