import type { Context } from 'aws-lambda';
import { Observers } from '../observe/observers.ts';
import { invoker } from '../operate/invoke.ts';
import { patiently } from '../postgres/patience.ts';
import { Session } from '../postgres/session.ts';
import { readSettings } from '../settings.ts';
import { sweepJob, sweepName } from '../sweep/sweep.ts';
import { coordinatorOf, getReady, invoke, jobsOf, type Answer } from './invocation.ts';
import { reported } from './reported.ts';
import type { Deployed, EventHandler } from './scheduled.ts';

/** How long a full or starting server is asked again, ms. */
const patienceMs = 10_000;

/** The handler of the sweep, a job like any other, but that it knows all the others. */
export function sweepHandler({ registry, ...around }: Deployed): EventHandler {
  getReady(new Map());
  return reported(async (event: unknown, context: Context): Promise<Answer> => {
    const settings = readSettings();
    const coordinator = coordinatorOf(settings, around);
    const sweep = sweepJob({
      registry: jobsOf(registry, settings),
      deployment: settings.deployment,
      deliver: invoker(settings.http),
      openSession: async () => patiently(() => Session.open(settings.target), patienceMs),
      retentionMs: settings.retentionMs,
      sinks: coordinator.sinks,
      timeoutMs: coordinator.publishTimeoutMs,
      logger: coordinator.logger,
      observers: new Observers(coordinator.logger, around.observers),
    });
    return invoke(event, context, coordinator, {
      registry: new Map([[sweepName, sweep]]),
      ownJob: sweepName,
    });
  });
}
