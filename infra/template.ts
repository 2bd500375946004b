/** What serverless.yml is filled with. Loads the jobs by itself, so that one which can't be declared is told with its file. */
import { loadJobs } from './declared.ts';
import type { Deployment, DeploymentOptions } from './deployment.ts';

/** @throws what {@link deploymentOf} throws, and what a job's declaration does */
export async function templateOf(options: DeploymentOptions): Promise<Deployment> {
  await loadJobs();
  const { deploymentOf } = await import('./deployment.ts');
  return deploymentOf(options);
}
