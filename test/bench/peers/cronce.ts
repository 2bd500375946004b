/** Ourselves, at our defaults. The only file here that knows the package beside which all this is measured. */
import { coordinate } from '../../../src/coordinate.ts';
import { defineJob, type Job } from '../../../src/job.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../../support/coordinator.ts';
import type { Peer } from './peer.ts';

/** An invocation's, ms. */
const timeLeftMs = 600_000;

function cronce(options: { readonly lockDelayMs?: number }): Peer['start'] {
  return async ({ postgres }, jobs, work) => {
    const made = new Map<string, Job>(
      jobs.map((name) => {
        const perform = async ({ slot }: { readonly slot: string }) => work(name, slot);
        return [name, defineJob({ name, ...options, work: perform })];
      }),
    );
    // A busy machine of two cores is no fault of the server's.
    const coordinator = coordinatorOn(postgres, {
      target: { ...targetOf(postgres), connectTimeoutMs: 20_000 },
    });
    return {
      async deliver(job, slot) {
        const task = made.get(job);
        if (task === undefined) throw new Error(`no job ${job}`);
        const run = await coordinate(deliveryFor(task, new Date(), { slot }), timeLeftMs, coordinator);
        if (run.status === 'succeeded') return true;
        if (run.status === 'skipped') return false;
        throw new Error(`${run.status}: ${run.error?.message ?? ''}`);
      },
      stop: async () => Promise.resolve(),
    };
  };
}

const common = { on: 'PostgreSQL', resident: false, takenOverBy: 'a delivery' } as const;

export const ours: Peer = {
  ...common,
  name: 'Cronce',
  setUp: 'defaults: lease 15 s, and as long a lock delay',
  start: cronce({}),
};

export const oursWithoutDelay: Peer = {
  ...common,
  name: 'Cronce, lockDelayMs 0',
  setUp: 'lease 15 s, `lockDelayMs: 0`: for a job that writes through `tx` alone',
  start: cronce({ lockDelayMs: 0 }),
};
