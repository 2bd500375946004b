import type { Job } from '../src/job.ts';
import * as declared from '../src/jobs/index.ts';
import { sweepJob } from '../src/sweep.ts';

/**
 * All that is deployed and delivered: the jobs of the registry, and the sweep, which is one too. Only their options
 * are of interest here; nothing is run.
 */
export const deployedJobs: readonly Job[] = [...declared.registry.values(), sweepAsDeclared()];

/** Those of them that come along with Cronce. The list goes when they do. */
export const exampleNames: readonly string[] = examplesIn(declared).map(({ name }) => name);

function examplesIn(jobs: object): readonly Job[] {
  return 'examples' in jobs ? (jobs.examples as readonly Job[]) : [];
}

function sweepAsDeclared(): Job {
  const never = async (): Promise<never> => {
    throw new Error('this sweep is for reading its options only; functions/sweep.ts makes the one that runs');
  };
  const idle = { sinks: [], timeoutMs: 0, retentionMs: 0, logger: console };
  const { registry } = declared;
  return sweepJob({ ...idle, registry, deliver: never, openSession: never });
}
