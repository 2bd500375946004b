import { Logger } from '@aws-lambda-powertools/logger';
import type { Context } from 'aws-lambda';
import { coordinate, refuse, type Coordinator } from '../coordinate.ts';
import type { Registry } from '../job.ts';
import { matches } from '../calendar/occurrences.ts';
import type { Observer } from '../observe/observer.ts';
import { loadDriver } from '../postgres/driver.ts';
import { deservesRetry, type RunRecord } from '../run.ts';
import { readSettings, type Settings } from '../settings.ts';
import { eventBridgeSink } from '../sinks/eventbridge.ts';
import type { Sink } from '../sinks/sink.ts';
import { deliveryOf, TriggerError, type Delivery } from '../path/trigger.ts';

/** Tells Lambda to deliver the event again. The run itself is recorded and published already. */
class RunWentWrong extends Error {
  override readonly name = 'RunWentWrong';
}

/** What Lambda shows of an invocation that ended as it should. */
export type Answer = Pick<RunRecord, 'id' | 'job' | 'slot' | 'status' | 'skipReason' | 'attempt' | 'final'>;

/**
 * Begins to load what the first invocation would: Lambda gives a small function more CPU before that than in it. Nothing
 * waits for it, and what is wrong is said by the invocation that comes upon it.
 */
export function getReady(registry: Registry): void {
  const begin = async () => {
    const { target, ownJob } = readSettings();
    // Only a job with a zone needs its clock, to tell what falls due.
    for (const { schedule, timeZone } of registry.get(ownJob ?? '')?.schedules ?? [])
      matches(schedule, new Date(), timeZone);
    return loadDriver(target.driver);
  };
  begin().catch(() => undefined);
}

/** A delivery comes in, its outcome goes out. Throws where Lambda should deliver the event again. */
export async function invoke(
  event: unknown,
  context: Context,
  coordinator: Coordinator,
  own: { registry: Registry; ownJob: string | null },
): Promise<Answer> {
  const run = await runOf(event, context, coordinator, own);
  if (deservesRetry(run))
    throw new RunWentWrong(`${run.job} ${run.slot} ${run.status}: ${run.error?.message ?? ''}`);
  const { id, job, slot, status, skipReason, attempt, final } = run;
  return { id, job, slot, status, skipReason, attempt, final };
}

/** Whatever can be attributed to a job leaves a record, also an event that can't be understood. */
async function runOf(
  event: unknown,
  context: Context,
  coordinator: Coordinator,
  own: { registry: Registry; ownJob: string | null },
): Promise<RunRecord> {
  const around = { ...own, deliveryId: context.awsRequestId, now: new Date() };
  let delivery: Delivery;
  try {
    delivery = deliveryOf(event, around);
  } catch (error) {
    if (!(error instanceof TriggerError) || error.job === null) throw error;
    return refuse({ ...around, job: error.job, error }, context.getRemainingTimeInMillis(), coordinator);
  }
  return coordinate(delivery, context.getRemainingTimeInMillis(), coordinator);
}

/** What a deployment has around its runs. */
interface Around {
  readonly observers?: readonly Observer[];
  readonly sinks?: readonly Sink[];
}

export function coordinatorOf(settings: Settings, { observers = [], sinks = [] }: Around = {}): Coordinator {
  return {
    target: settings.target,
    deployment: settings.deployment,
    leaseMs: settings.leaseMs,
    publishTimeoutMs: settings.publishTimeoutMs,
    retentionMs: settings.retentionMs,
    sinks: [...(settings.eventBus ? [eventBridgeSink(settings.eventBus)] : []), ...sinks],
    logger: new Logger({ serviceName: 'cronce', logLevel: settings.logLevel }),
    observers,
  };
}

/** The jobs that this deployment has. */
export function jobsOf(registry: Registry, { withoutJobs }: Settings): Registry {
  return new Map([...registry].filter(([name]) => !withoutJobs.includes(name)));
}
