import type { Context } from 'aws-lambda';
import { invoker } from '../src/invoke.ts';
import { patiently } from '../src/postgres/patience.ts';
import { Session } from '../src/postgres/session.ts';
import { readSettings } from '../src/settings.ts';
import { sweepJob, sweepName } from '../src/sweep.ts';
import { coordinatorOf, getReady, invoke, type Answer } from './shared/invocation.ts';
import { jobsOf } from './shared/jobs.ts';
import { reported } from './shared/reported.ts';

/** How long a full or starting server is asked again, ms. */
const patienceMs = 10_000;

getReady(new Map());

/** The sweep, a job like any other, but that it knows all the others. */
export const handler = reported(async (event: unknown, context: Context): Promise<Answer> => {
  const settings = readSettings();
  const coordinator = coordinatorOf(settings);
  const sweep = sweepJob({
    registry: jobsOf(settings),
    deployment: settings.deployment,
    deliver: invoker(settings.http),
    openSession: async () => patiently(() => Session.open(settings.target), patienceMs),
    retentionMs: settings.retentionMs,
    sinks: coordinator.sinks,
    timeoutMs: coordinator.publishTimeoutMs,
    logger: coordinator.logger,
  });
  return invoke(event, context, coordinator, {
    registry: new Map([[sweepName, sweep]]),
    ownJob: sweepName,
  });
});
