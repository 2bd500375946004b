import type { Registry } from '../../src/job.ts';
import { registry } from '../../src/jobs/index.ts';
import type { Settings } from '../../src/settings.ts';

/** The jobs that this deployment has. */
export function jobsOf({ withoutJobs }: Settings): Registry {
  return new Map([...registry].filter(([name]) => !withoutJobs.includes(name)));
}
