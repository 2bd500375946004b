import { describe } from '../calendar/words.ts';
import type { JobState } from '../operate/history.ts';
import type { Job, JobSchedule } from '../job.ts';
import { nextAfter } from '../calendar/occurrences.ts';
import type { RunRecord } from '../run.ts';

/** How a job is shown: what its code says of it, and what the database knows. */
export interface JobView {
  readonly name: string;
  readonly description: string;
  readonly schedules: readonly ScheduleView[];
  /** The earliest of them. Null for a job that runs by hand, while it is paused, and while not known. */
  readonly nextAt: string | null;
  readonly paused: { readonly at: string; readonly by: string | null; readonly reason: string | null } | null;
  /** When its first delivery came. */
  readonly firstSeenAt: string | null;
}

export interface ScheduleView {
  readonly expression: string;
  readonly timeZone: string;
  readonly via: JobSchedule['via'];
  readonly inWords: string;
  readonly nextAt: string | null;
}

export interface Known {
  readonly state: JobState | undefined;
  /** Newest first. */
  readonly runs: readonly RunRecord[];
  readonly now: Date;
}

export function viewOf(job: Job, { state, runs, now }: Known): JobView {
  const anchor = anchorOf(job, runs);
  const schedules = job.schedules.map((one) => scheduleView(one, now, anchor));
  const next = schedules.flatMap(({ nextAt }) => (nextAt === null ? [] : [nextAt])).sort();
  const paused = state?.pausedAt
    ? { at: state.pausedAt, by: state.pausedBy, reason: state.pauseReason }
    : null;
  return {
    name: job.name,
    description: job.description,
    schedules,
    nextAt: paused ? null : (next[0] ?? null),
    paused,
    firstSeenAt: state?.firstSeenAt ?? null,
  };
}

/** The decisions of a job's author, as they took effect. */
export function optionsOf(job: Job) {
  const { timeoutMs, leaseMs, lockDelayMs, places, overlap, waitMs, retries, afterLost, startDeadlineMs } =
    job;
  const lock = typeof job.lock === 'function' ? 'by params' : String(job.lock);
  return {
    timeoutMs,
    leaseMs,
    lockDelayMs,
    lock,
    places,
    overlap,
    waitMs,
    retries,
    afterLost,
    startDeadlineMs,
  };
}

function scheduleView(
  { schedule, timeZone, via }: JobSchedule,
  now: Date,
  anchor: Date | undefined,
): ScheduleView {
  const next = schedule.kind === 'rate' && !anchor ? undefined : nextAfter(schedule, now, timeZone, anchor);
  return {
    expression: schedule.expression,
    timeZone,
    via,
    inWords: describe(schedule, timeZone),
    nextAt: next?.toISOString() ?? null,
  };
}

/**
 * AWS sets the phase of `rate()` when it makes the rule, so only a delivery tells it; and whose delivery it was can
 * only be told where there is one schedule.
 */
function anchorOf(job: Job, runs: readonly RunRecord[]): Date | undefined {
  if (job.schedules.length !== 1) return undefined;
  const delivered = runs.find(
    ({ trigger, slotGuessed }) => (trigger === 'rule' || trigger === 'scheduler') && !slotGuessed,
  );
  return delivered && new Date(delivered.scheduledFor);
}
