import { Logger } from '@aws-lambda-powertools/logger';
import type { Context } from 'aws-lambda';
import { coordinate, type Coordinator } from '../../src/coordinate.ts';
import type { Registry } from '../../src/job.ts';
import { deservesRetry, type RunRecord } from '../../src/run.ts';
import type { Settings } from '../../src/settings.ts';
import { eventBridgeSink } from '../../src/sinks/eventbridge.ts';
import { deliveryOf } from '../../src/trigger.ts';

/** Tells Lambda to deliver the event again. The run itself is recorded and published already. */
class RunWentWrong extends Error {
  override readonly name = 'RunWentWrong';
}

/** What Lambda shows of an invocation that ended as it should. */
export type Answer = Pick<RunRecord, 'id' | 'job' | 'slot' | 'status' | 'skipReason' | 'attempt' | 'final'>;

/** A delivery comes in, its outcome goes out. Throws where Lambda should deliver the event again. */
export async function invoke(
  event: unknown,
  context: Context,
  coordinator: Coordinator,
  own: { registry: Registry; ownJob: string | null },
): Promise<Answer> {
  const delivery = deliveryOf(event, { ...own, deliveryId: context.awsRequestId, now: new Date() });
  const run = await coordinate(delivery, context.getRemainingTimeInMillis(), coordinator);
  if (deservesRetry(run))
    throw new RunWentWrong(`${run.job} ${run.slot} ${run.status}: ${run.error?.message ?? ''}`);
  const { id, job, slot, status, skipReason, attempt, final } = run;
  return { id, job, slot, status, skipReason, attempt, final };
}

export function coordinatorOf(settings: Settings): Coordinator {
  return {
    target: settings.target,
    leaseMs: settings.leaseMs,
    publishTimeoutMs: settings.publishTimeoutMs,
    sinks: settings.eventBus ? [eventBridgeSink(settings.eventBus)] : [],
    logger: new Logger({ serviceName: 'cronce', logLevel: settings.logLevel }),
  };
}
