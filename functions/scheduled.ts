import type { Context } from 'aws-lambda';
import { registry } from '../src/jobs/index.ts';
import { readSettings } from '../src/settings.ts';
import { coordinatorOf, invoke, type Answer } from './shared/invocation.ts';

export type { Answer };

/** One function a job, all of this bundle. */
export async function handler(event: unknown, context: Context): Promise<Answer> {
  const settings = readSettings();
  return invoke(event, context, coordinatorOf(settings), { registry, ownJob: settings.ownJob });
}
