import { Logger } from '@aws-lambda-powertools/logger';
import type { Context } from 'aws-lambda';
import { coordinate, type Coordinator } from '../src/coordinate.ts';
import { registry } from '../src/jobs/index.ts';
import { deservesRetry, type RunRecord } from '../src/run.ts';
import { readSettings, type Settings } from '../src/settings.ts';
import { eventBridgeSink } from '../src/sinks/eventbridge.ts';
import { deliveryOf } from '../src/trigger.ts';

/** Tells Lambda to deliver the event again. The run itself is recorded and published already. */
class RunWentWrong extends Error {
  override readonly name = 'RunWentWrong';
}

/** What Lambda shows of an invocation that ended as it should. */
export type Answer = Pick<RunRecord, 'id' | 'job' | 'slot' | 'status' | 'skipReason' | 'attempt' | 'final'>;

/** One function a job, all of this bundle: a delivery comes in, its outcome goes out. */
export async function handler(event: unknown, context: Context): Promise<Answer> {
  const settings = readSettings();
  const around = { registry, ownJob: settings.ownJob, deliveryId: context.awsRequestId, now: new Date() };
  const delivery = deliveryOf(event, around);
  const run = await coordinate(delivery, context.getRemainingTimeInMillis(), coordinatorOf(settings));
  if (deservesRetry(run))
    throw new RunWentWrong(`${run.job} ${run.slot} ${run.status}: ${run.error?.message ?? ''}`);
  const { id, job, slot, status, skipReason, attempt, final } = run;
  return { id, job, slot, status, skipReason, attempt, final };
}

function coordinatorOf(settings: Settings): Coordinator {
  return {
    target: settings.target,
    leaseMs: settings.leaseMs,
    publishTimeoutMs: settings.publishTimeoutMs,
    sinks: settings.eventBus ? [eventBridgeSink(settings.eventBus)] : [],
    logger: new Logger({ serviceName: 'cronce', logLevel: settings.logLevel }),
  };
}
