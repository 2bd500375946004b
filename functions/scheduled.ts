import type { Context } from 'aws-lambda';
import { invoker } from '../src/invoke.ts';
import { registry } from '../src/jobs/index.ts';
import { readSettings } from '../src/settings.ts';
import { coordinatorOf, getReady, invoke, type Answer } from './shared/invocation.ts';
import { reported } from './shared/reported.ts';

export type { Answer };

getReady(registry);

/** One function a job, all of this bundle. Where its job owes slots, it invokes itself for the next. */
export const handler = reported(async (event: unknown, context: Context): Promise<Answer> => {
  const settings = readSettings();
  const coordinator = { ...coordinatorOf(settings), deliver: invoker(settings.http) };
  return invoke(event, context, coordinator, { registry, ownJob: settings.ownJob });
});
