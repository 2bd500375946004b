import { AsyncLocalStorage } from 'node:async_hooks';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Logger } from '../run.ts';

/**
 * This module's secret: whose a rejected promise is that nobody waits for.
 *
 * Node ends the process for one, and a Lambda's runtime does too: its own listener is called whatever ours says. So
 * while this module is in use the listeners of others stand behind ours, and are called for what is no job's. Node
 * raises the event in the asynchronous context of the promise (20 to 24), which tells the run; where a job's library
 * has lost that context, it is the one run under way, if there is one alone.
 */

interface Owner {
  readonly logger: Logger;
  /** Which run it is, for the log. */
  readonly about: Record<string, unknown>;
  readonly unhandled: Map<Promise<unknown>, unknown>;
  over: boolean;
}

const owners = new AsyncLocalStorage<Owner>();
const underWay = new Set<Owner>();
const others: NodeJS.UnhandledRejectionListener[] = [];

/**
 * Runs a job's work, and fails with the first rejection of a promise of its own that nobody has handled by the end.
 * One that comes later is logged: the run's outcome is on record by then.
 */
export async function owningStrays<T>(
  told: Pick<Owner, 'logger' | 'about'>,
  work: () => Promise<T>,
): Promise<T> {
  const owner: Owner = { ...told, unhandled: new Map(), over: false };
  standInFront();
  underWay.add(owner);
  try {
    const value = await owners.run(owner, work);
    await nextTurn(); // Node raises them when the microtasks are done
    for (const reason of owner.unhandled.values()) throw reason;
    return value;
  } finally {
    owner.over = true;
    underWay.delete(owner);
  }
}

/** Whoever has come since is moved behind us; we stay, for what a job that has ended left running. */
function standInFront(): void {
  for (const listener of process.listeners('unhandledRejection')) {
    process.off('unhandledRejection', listener);
    if (listener !== onStray) others.push(listener);
  }
  process.off('rejectionHandled', onHandled);
  process.on('unhandledRejection', onStray);
  process.on('rejectionHandled', onHandled);
}

function onStray(reason: unknown, promise: Promise<unknown>): void {
  const owner = owners.getStore() ?? onlyOne();
  if (!owner) {
    passOn(reason, promise);
    return;
  }
  if (!owner.over) owner.unhandled.set(promise, reason);
  tell(owner, reason);
}

/** An error may be anything, and a logger that chokes on it must not end the process either. */
function tell({ logger, about, over }: Owner, reason: unknown): void {
  const what = over ? 'came after the end of its run' : 'fails its run unless it is handled before the end';
  try {
    logger.warn(`a rejected promise that nobody awaited ${what}`, { ...about, error: reason });
  } catch {
    logger.warn(`a rejected promise that nobody awaited ${what}; its reason can’t be shown`, about);
  }
}

function onHandled(promise: Promise<unknown>): void {
  for (const { unhandled } of underWay) unhandled.delete(promise);
}

function onlyOne(): Owner | undefined {
  return underWay.size === 1 ? [...underWay][0] : undefined;
}

/** Without a listener Node would end the process with this reason; so does throwing it here. */
function passOn(reason: unknown, promise: Promise<unknown>): void {
  if (others.length === 0) throw reason;
  for (const listener of others) listener.call(process, reason, promise);
}
