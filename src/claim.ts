import type { QueryResult } from './postgres/driver.ts';
import type { Job } from './job.ts';
import type { LockNames } from './lock-name.ts';
import type { RunRecord } from './run.ts';
import type { Session } from './postgres/session.ts';
import type { Delivery } from './trigger.ts';
import { toRecord, answerOf } from './postgres/record.ts';

/** The version of infra/migrations that this code was written for. */
export const schemaVersion = 2;

/**
 * The longest that a claim waits for the fence: a frozen `fenced` transaction of the predecessor may hold it
 * for one lease.
 */
export function claimTimeLimitMs(leaseMs: number): number {
  return leaseMs + 2_000;
}

/** How long a claim looks for the run behind a held lock before it gives up its slot, ms: another T0 is short. */
const patienceMs = 250;

/** What T0 answers: the start record (or a skip), the dead predecessors it settled, and how long to rest. */
export interface Claimed {
  readonly run: RunRecord;
  readonly settled: readonly RunRecord[];
  /** After a server restart: ms until a cut-off predecessor has surely stopped. */
  readonly restMs: number;
}

export interface ClaimRequest {
  readonly runId: string;
  readonly delivery: Delivery;
  readonly lock: LockNames;
  readonly leaseMs: number;
  readonly waitMs: number;
  /** Claims anew for a run that had to give way between its T0 and T1. */
  readonly again: boolean;
  /** How long a start record may stand without its lock, ms: the time limit of entering, and a little. */
  readonly gapMs: number;
  /** Stamps outcomes as published when the log line, written by the caller, is the only sink. */
  readonly published: boolean;
  /** A virtual clock's time; absent, the server's clock counts. */
  readonly now?: Date;
}

/** T0, as one run of statements. What `cronce.claim` decides is in infra/migrations. */
export function claimSql(session: Session, request: ClaimRequest): string {
  const limitMs = claimTimeLimitMs(request.leaseMs);
  return [
    'BEGIN ISOLATION LEVEL READ COMMITTED',
    `SELECT set_config('lock_timeout', '${limitMs}', true), set_config('statement_timeout', '${limitMs + request.waitMs + 1_000}', true)`,
    `SELECT cronce.claim(${session.literal(JSON.stringify(claimJson(request)))}::jsonb) AS claimed`,
    'COMMIT',
  ].join('; ');
}

function claimJson({ delivery, lock, ...request }: ClaimRequest): object {
  const { job } = delivery;
  return {
    schema: schemaVersion,
    now: request.now?.toISOString() ?? null,
    published: request.published,
    again: request.again,
    gapMs: request.gapMs,
    leaseMs: request.leaseMs,
    run: {
      id: request.runId,
      job: job.name,
      slot: delivery.slot,
      scheduledFor: delivery.scheduledFor.toISOString(),
      slotGuessed: delivery.slotGuessed,
      trigger: delivery.trigger,
      deliveryId: delivery.deliveryId,
      requestedBy: delivery.requestedBy,
      params: delivery.params,
    },
    lock: {
      name: lock.name,
      keys: lock.keys.map(String),
      guard: lock.guard.toString(),
      waitMs: request.waitMs,
      patienceMs,
    },
    policy: policyJson(job, delivery.byHand),
  };
}

function policyJson(job: Job, byHand: boolean): object {
  return {
    byHand,
    maxAttempts: job.retries + 1,
    afterLost: job.afterLost,
    startDeadlineMs: job.startDeadlineMs,
  };
}

export function claimed(results: readonly QueryResult[]): Claimed {
  const answer = answerOf<{ run: RunRecord; settled: RunRecord[]; restMs: number }>(results, 'claimed');
  return { run: toRecord(answer.run), settled: answer.settled.map(toRecord), restMs: answer.restMs };
}
