import type { Context } from 'aws-lambda';
import { invoker } from '../src/invoke.ts';
import { registry } from '../src/jobs/index.ts';
import { readSettings } from '../src/settings.ts';
import { coordinatorOf, invoke, type Answer } from './shared/invocation.ts';

export type { Answer };

/** One function a job, all of this bundle. Where its job owes slots, it invokes itself for the next. */
export async function handler(event: unknown, context: Context): Promise<Answer> {
  const settings = readSettings();
  const { functionPrefix, lambdaEndpoint: endpoint } = settings.http;
  const coordinator = { ...coordinatorOf(settings), deliver: invoker({ functionPrefix, endpoint }) };
  return invoke(event, context, coordinator, { registry, ownJob: settings.ownJob });
}
