import { call, change } from '../postgres/call.ts';
import { isoTime } from '../postgres/record.ts';
import type { Session } from '../postgres/session.ts';
import { unnamedDeployment } from '../run.ts';

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
  deployment: string = unnamedDeployment,
): Promise<PauseState> {
  return stateAfter(session, call(session, 'pause_job', job, by, reason, null, deployment), job);
}

/** One that is not paused stays as it is. */
export async function resumeJob(
  session: Session,
  job: string,
  by: string,
  deployment: string = unnamedDeployment,
): Promise<PauseState> {
  return stateAfter(session, call(session, 'resume_job', job, by, null, deployment), job);
}

async function stateAfter(session: Session, changed: string, job: string): Promise<PauseState> {
  const row = await change<JobRow | null>(session, `to_jsonb(${changed})`);
  if (!row?.paused_at || !row.paused_by) return { job, paused: null };
  return { job, paused: { at: isoTime(row.paused_at), by: row.paused_by, reason: row.pause_reason } };
}
