/**
 * The vocabulary of runs: the closed sets of words, and the one shape in which a run is stored,
 * published and shown. No I/O, no imports.
 */

/** The deployment of whoever names none; its jobs' own locks are named as the jobs are. */
export const unnamedDeployment = 'default';

/** What can become of a delivery. The schema's CHECK `run_status_known` holds the same set. */
export const outcomes = [
  'succeeded',
  'failed',
  'timed_out',
  'lost',
  'cancelled',
  'skipped',
  'missed',
] as const;
export type Outcome = (typeof outcomes)[number];
export type Status = Outcome | 'running';

/** Why a delivery was turned away. The schema's CHECK `run_skip_reason_known` holds the same set. */
export const skipReasons = ['held', 'duplicate', 'paused', 'too_late', 'on_hold', 'off_schedule'] as const;
export type SkipReason = (typeof skipReasons)[number];

/** Why work is told to stop. */
export type StopReason = 'lock_lost' | 'deadline' | 'cancelled';

/** How a delivery came to be. */
export type TriggerKind = 'rule' | 'scheduler' | 'manual' | 'sweep' | 'unknown';

export type Json = string | number | boolean | null | readonly Json[] | { readonly [key: string]: Json };

/** What PostgreSQL tells of an error besides its code, under the names that its drivers give it. */
export const sqlFields = [
  'severity',
  'detail',
  'hint',
  'position',
  'where',
  'schema',
  'table',
  'column',
  'dataType',
  'constraint',
] as const;

/** An error as it is stored: what was thrown, cleaned, with its causes; 64 KB of JSON at most. */
export type RunError = Readonly<Partial<Record<(typeof sqlFields)[number], string>>> & {
  readonly name: string;
  readonly message: string;
  readonly code?: string;
  readonly stack?: string;
  readonly cause?: RunError;
  readonly errors?: readonly RunError[];
};

/** One delivery and its outcome, as stored in `cronce.run` and sent to every sink. Times are ISO 8601, UTC. */
export interface RunRecord {
  readonly id: string;
  /** Service and stage: whose job it is, where several share a database. */
  readonly deployment: string;
  readonly job: string;
  /** `2026-11-29T12:00:00Z` for an occurrence of a schedule, `manual:<key>` for a run started by hand. */
  readonly slot: string;
  readonly scheduledFor: string;
  /** The event named no time, so the slot is the clock's. */
  readonly slotGuessed: boolean;
  readonly trigger: TriggerKind;
  /** The invocation's request id, or null where there was no invocation (a missed slot). */
  readonly deliveryId: string | null;
  readonly requestedBy: string | null;
  /** Of a run by hand: why, in the words of whoever asked. */
  readonly requestReason: string | null;
  readonly status: Status;
  readonly skipReason: SkipReason | null;
  /** The run that stood in the way: of a skipped one, or of one that was delayed. Null where a foreign client holds the lock. */
  readonly blockedBy: string | null;
  /** Whose run that is. */
  readonly blockedByDeployment: string | null;
  readonly lockName: string;
  /** Decimal text: a JS number would lose digits above 2^53. */
  readonly lockKey: string | null;
  readonly fence: string | null;
  /** The how-manyth started run of its slot; null for a run that never started. */
  readonly attempt: number | null;
  readonly maxAttempts: number | null;
  /**
   * No further attempt follows. Null while running, and for skips and missed slots, but false for what is owed: a slot
   * given up for want of time (a lock delay, a claim that could not get through) or for one that caught up, and a missed
   * one that is to run late.
   */
  readonly final: boolean | null;
  readonly leaseMs: number | null;
  /** How long the next run of this lock waits before its work, where this one did not end by itself. */
  readonly lockDelayMs: number | null;
  /** How long this run waited before its work, for one that had not ended by itself. */
  readonly delayedMs: number | null;
  readonly params: Json;
  readonly output: Json;
  readonly error: RunError | null;
  readonly receivedAt: string;
  readonly startedAt: string | null;
  readonly finishedAt: string | null;
  readonly cancelRequestedAt: string | null;
  readonly cancelRequestedBy: string | null;
  readonly publishedAt: string | null;
  /** Why it has not reached every sink; null where it has, or was not tried yet. */
  readonly publishError: PublishError | null;
}

export interface PublishError {
  readonly tries: number;
  /** It is tried no more. */
  readonly givenUp: boolean;
  /** Of the last try: each sink that did not take it, and that sink's own code for it. */
  readonly failures: readonly { readonly sink: string; readonly code: string; readonly message: string }[];
}

export function isOver(run: RunRecord): boolean {
  return run.status !== 'running';
}

/** Whether Lambda should deliver the same event again: the run went wrong and attempts remain. */
export function deservesRetry(run: RunRecord): boolean {
  const wentWrong = run.status === 'failed' || run.status === 'timed_out' || run.status === 'lost';
  return wentWrong && run.final === false;
}

/** The parts of a structured logger that Cronce and its jobs use. */
export interface Logger {
  debug(message: string, ...fields: Record<string, unknown>[]): void;
  info(message: string, ...fields: Record<string, unknown>[]): void;
  warn(message: string, ...fields: Record<string, unknown>[]): void;
  error(message: string, ...fields: Record<string, unknown>[]): void;
}

/** Thrown by work to say that another attempt would be no better: the run fails for good. */
export class PermanentError extends Error {
  override readonly name: string = 'PermanentError';
}
