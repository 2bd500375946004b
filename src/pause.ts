import { answerOf } from './postgres/record.ts';
import type { Session } from './postgres/session.ts';

/**
 * Pausing a job: its deliveries are skipped as `paused` until it is resumed, and what falls due meanwhile is not missed.
 * It outlives deployments. An operator may still run a paused job by hand.
 */
export interface PauseState {
  readonly job: string;
  /** Who, when and why; null while the job is not paused. */
  readonly paused: { readonly at: string; readonly by: string; readonly reason: string | null } | null;
}

interface JobRow {
  readonly name: string;
  readonly paused_at: string | null;
  readonly paused_by: string | null;
  readonly pause_reason: string | null;
}

/** One that is paused already stays as it is: who paused it first, and why, counts. */
export async function pauseJob(
  session: Session,
  job: string,
  by: string,
  reason: string | null,
): Promise<PauseState> {
  const why = reason === null ? 'NULL' : session.literal(reason);
  return change(session, `cronce.pause_job(${session.literal(job)}, ${session.literal(by)}, ${why}, NULL)`);
}

/** One that is not paused stays as it is. */
export async function resumeJob(session: Session, job: string, by: string): Promise<PauseState> {
  return change(session, `cronce.resume_job(${session.literal(job)}, ${session.literal(by)}, NULL)`, job);
}

async function change(session: Session, call: string, job = ''): Promise<PauseState> {
  const row = answerOf<JobRow | null>(await session.send(`SELECT to_jsonb(${call}) AS job`), 'job');
  if (!row?.paused_at || !row.paused_by) return { job: row?.name ?? job, paused: null };
  const at = new Date(row.paused_at).toISOString();
  return { job: row.name, paused: { at, by: row.paused_by, reason: row.pause_reason } };
}
