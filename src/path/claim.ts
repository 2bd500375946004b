import type { QueryResult } from '../postgres/driver.ts';
import type { LockNames } from '../lock-name.ts';
import type { RunError, RunRecord } from '../run.ts';
import type { Delivery } from './trigger.ts';
import { type Argument, call, callSql, transaction, type Quoting } from '../postgres/call.ts';
import { claimLimitMs, obstacleMs, patienceMs } from './limits.ts';
import { toRecord, answerOf } from '../postgres/record.ts';

/** The version of infra/migrations that this code was written for. */
export const schemaVersion = 6;

/** What T0 answers: the start record (or a skip), the dead predecessors it settled, and how long to rest. */
export interface Claimed {
  readonly kind: 'claimed';
  readonly run: RunRecord;
  readonly settled: readonly RunRecord[];
  /** Lock delay: ms until a predecessor that did not end by itself has surely stopped. */
  readonly restMs: number;
  /** The job owes slots: see owed.ts. */
  readonly owes: boolean;
}

/** Nothing was recorded: what stood in the way was asked to end for this delivery, or its slot was guessed before. */
export type NotClaimed =
  | { readonly kind: 'replace'; readonly holder: string }
  | { readonly kind: 'guessed'; readonly slot: string; readonly scheduledFor: Date };

export interface ClaimRequest {
  readonly runId: string;
  readonly delivery: Delivery;
  readonly deployment: string;
  readonly lock: LockNames;
  readonly leaseMs: number;
  readonly lockDelayMs: number;
  /** Until the invocation's work must end, ms: a delay that leaves too little of it is not waited for. */
  readonly timeLeftMs: number;
  readonly waitMs: number;
  /** Asks the run of an earlier slot that stands in the way to end. */
  readonly replace: boolean;
  /** Claims anew for a run that had to give way between its T0 and T1. */
  readonly again: boolean;
  /** How long a start record may stand without its lock, ms: the time limit of entering, and a little. */
  readonly gapMs: number;
  /** How long a slot's success is on record for sure, ms: an older slot is too late. Without it none is. */
  readonly retentionMs?: number | null;
  /** A virtual clock's time; absent, the server's clock counts. */
  readonly now?: Date;
}

/**
 * T0, as one run of statements. What `cronce.claim` decides is in infra/sql. The server looks for a client that has gone
 * only in statements that begin with that setting, so it comes before the claim, which may wait for minutes.
 */
export function claimSql(session: Quoting, request: ClaimRequest): string {
  const keep = `SELECT ${call(session, 'keep_session', request.leaseMs)}`;
  return transaction([keep, `SELECT ${call(session, 'claim', claimJson(request))} AS claimed`], {
    lockMs: obstacleMs,
    statementMs: claimLimitMs + request.waitMs + 1_000,
  });
}

/** For a delivery that could not get through its claim: a record that says so, and leaves the slot owed. */
export function turnAwaySql(session: Quoting, request: ClaimRequest, why: string): string {
  return callSql(call(session, 'turn_away', claimJson(request), why), 'recorded');
}

/** For a delivery that can't be run as it is: failed, for good. */
export function refuseSql(session: Quoting, request: Omit<ClaimRequest, 'lock'>, error: RunError): string {
  const lock = { name: request.delivery.job.name, keys: [], guard: 0n };
  const refused = call(session, 'refuse', claimJson({ ...request, lock }), { json: error });
  return callSql(refused, 'recorded');
}

/** What a claim is told, as the argument of the function that reads it. */
function claimJson(request: ClaimRequest): Argument {
  return { json: claimFields(request) };
}

function claimFields({ delivery, lock, ...request }: ClaimRequest): object {
  const { job } = delivery;
  return {
    schema: schemaVersion,
    deployment: request.deployment,
    now: request.now?.toISOString() ?? null,
    again: request.again,
    gapMs: request.gapMs,
    leaseMs: request.leaseMs,
    lockDelayMs: request.lockDelayMs,
    timeLeftMs: Math.floor(request.timeLeftMs),
    timeoutMs: job.timeoutMs,
    run: {
      id: request.runId,
      job: job.name,
      slot: delivery.slot,
      scheduledFor: delivery.scheduledFor.toISOString(),
      slotGuessed: delivery.slotGuessed,
      scheduledForGuessed: delivery.scheduledForGuessed,
      offSchedule: delivery.offSchedule,
      trigger: delivery.trigger,
      deliveryId: delivery.deliveryId,
      requestedBy: delivery.requestedBy,
      requestReason: delivery.requestReason ?? null,
      params: delivery.params,
    },
    lock: {
      name: lock.name,
      keys: lock.keys.map(String),
      guard: lock.guard.toString(),
      waitMs: request.waitMs,
      patienceMs,
    },
    policy: policyJson(delivery, request),
  };
}

function policyJson(
  { job, byHand }: Delivery,
  { replace, retentionMs }: Pick<ClaimRequest, 'replace' | 'retentionMs'>,
): object {
  return {
    byHand,
    replace,
    retentionMs: retentionMs ?? null,
    maxAttempts: job.retries + 1,
    afterLost: job.afterLost,
    startDeadlineMs: job.startDeadlineMs,
  };
}

type ClaimAnswer =
  | { run: RunRecord; settled: RunRecord[]; restMs: number; owes: boolean }
  | { replace: string }
  | { slot: string; scheduledFor: string };

export function claimed(results: readonly QueryResult[]): Claimed | NotClaimed {
  const answer = answerOf<ClaimAnswer>(results, 'claimed');
  if ('replace' in answer) return { kind: 'replace', holder: answer.replace };
  if ('slot' in answer)
    return { kind: 'guessed', slot: answer.slot, scheduledFor: new Date(answer.scheduledFor) };
  const { run, settled, restMs, owes } = answer;
  return { kind: 'claimed', run: toRecord(run), settled: settled.map(toRecord), restMs, owes };
}
