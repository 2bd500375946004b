/**
 * One of several processes that deliver at the same moment. Takes its orders as JSON in its first argument, delivers each
 * slot at once with all the others, and once more, later, where that threw, as Lambda would. Prints what became of them.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { coordinate } from '../../src/coordinate.ts';
import { defineJob } from '../../src/job.ts';
import { deservesRetry } from '../../src/run.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';

export interface Orders {
  readonly url: string;
  readonly jobs: readonly string[];
  /** How long each run works, ms. */
  readonly workMs: number;
  /** Until the invocation is killed, ms. */
  readonly timeLeftMs: number;
  /** Lambda's are 1 and 2 minutes. */
  readonly retryAfterMs: readonly number[];
}

export interface Told {
  readonly decided: number;
  /** Why an invocation threw, once for each. */
  readonly thrown: readonly string[];
}

const slot = '2026-12-01T00:00:00Z';
const orders = JSON.parse(process.argv[2] ?? '{}') as Orders;
/** The members starve each other of this machine's time, which is no fault of the server's. */
const connectTimeoutMs = 20_000;
const coordinator = coordinatorOn(orders.url, { target: { ...targetOf(orders.url), connectTimeoutMs } });
const thrown: string[] = [];

async function invoke(job: string): Promise<boolean> {
  const task = defineJob({ name: job, timeoutMs: orders.timeLeftMs, work: async () => delay(orders.workMs) });
  try {
    const run = await coordinate(deliveryFor(task, slot), orders.timeLeftMs, coordinator);
    if (deservesRetry(run)) thrown.push(`${run.status}: ${run.error?.message ?? ''}`);
    return !deservesRetry(run);
  } catch (error) {
    thrown.push(String(error));
    return false;
  }
}

async function deliver(job: string): Promise<boolean> {
  if (await invoke(job)) return true;
  for (const ms of orders.retryAfterMs) {
    await delay(ms);
    if (await invoke(job)) return true;
  }
  return false;
}

const decided = await Promise.all(orders.jobs.map(deliver));
const told: Told = { decided: decided.filter(Boolean).length, thrown };
console.log(JSON.stringify(told));
