import type { Context } from 'aws-lambda';
import { registry } from '../src/jobs/index.ts';
import { readSettings } from '../src/settings.ts';
import { coordinatorOf, invoke, type Answer } from './shared/invocation.ts';
import { reported } from './shared/reported.ts';

export type { Answer };

/** One function a job, all of this bundle. */
export const handler = reported(async (event: unknown, context: Context): Promise<Answer> => {
  const settings = readSettings();
  return invoke(event, context, coordinatorOf(settings), { registry, ownJob: settings.ownJob });
});
