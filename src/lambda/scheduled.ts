import type { Context } from 'aws-lambda';
import type { Registry } from '../job.ts';
import type { Observer } from '../observe/observer.ts';
import { invoker } from '../operate/invoke.ts';
import type { Sink } from '../sinks/sink.ts';
import { readSettings } from '../settings.ts';
import { coordinatorOf, getReady, invoke, type Answer } from './invocation.ts';
import { reported } from './reported.ts';

export interface Deployed {
  /** The jobs of this deployment, from `defineJobs`. */
  readonly registry: Registry;
  /** Who sees every step of its runs: metrics, spans, lines of your own. */
  readonly observers?: readonly Observer[];
  /** Where its outcomes go, beside the log and the bus of `CRONCE_EVENT_BUS`. The same for a job's handler and the sweep's. */
  readonly sinks?: readonly Sink[];
}

/** What Lambda calls for an event that is no request. */
export type EventHandler = (event: unknown, context: Context) => Promise<Answer>;

/**
 * The handler of every job's function: one function a job, all of this one bundle; `CRONCE_JOB` says which it is. Where
 * its job owes slots, it invokes itself for the next.
 *
 * The handler throws where Lambda should deliver the event again (an attempt is left), and where nothing could be
 * recorded; the first has been recorded and published by then.
 */
export function scheduledHandler({ registry, ...around }: Deployed): EventHandler {
  getReady(registry);
  return reported(async (event: unknown, context: Context): Promise<Answer> => {
    const settings = readSettings();
    const coordinator = { ...coordinatorOf(settings, around), deliver: invoker(settings.http) };
    return invoke(event, context, coordinator, { registry, ownJob: settings.ownJob });
  });
}
