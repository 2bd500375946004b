import { setTimeout as delay } from 'node:timers/promises';
import { findRuns } from '../history.ts';
import type { Session } from '../postgres/session.ts';
import { isOver, type Logger, type RunRecord } from '../run.ts';
import type { RunRequest } from '../trigger.ts';
import { lend } from './lend.ts';
import { Problem } from './problem.ts';

/** This module's secret: how a run is handed over, and how its outcome is found by one who waits for it. */
export interface Starting {
  /** One session a request, opened when it is needed and closed before the answer. */
  readonly openSession: () => Promise<Session>;
  /** Hands a run to its job's function, which will run it in its own time. */
  readonly startRun: (request: RunRequest) => Promise<void>;
  readonly logger: Logger;
  /** Whose runs are shown and started: service and stage. */
  readonly deployment?: string;
}

/**
 * Starts the run, and waits for its outcome for at most `waitMs`. Undefined where that is not long enough, or where
 * the database keeps us from looking: what is started stays started.
 * @throws {Problem} 502, where it could not be started
 */
export async function start(
  parts: Starting,
  request: RunRequest,
  waitMs: number,
): Promise<RunRecord | undefined> {
  const { job, slot } = request.cronce;
  const { deployment } = parts;
  const endsAt = performance.now() + waitMs;
  const look = async <T>(use: (session: Session) => Promise<T>) =>
    lend(parts.openSession, lookLimitMs(endsAt), use).catch((error: unknown) => {
      parts.logger.warn('could not look for the outcome', { error });
      return undefined;
    });
  const before =
    waitMs > 0 ? await look(async (session) => runsOf(session, job, slot, deployment)) : undefined;
  await handOver(parts, request);
  return (
    before &&
    look(async (session) => outcomeSince(before, endsAt, async () => runsOf(session, job, slot, deployment)))
  );
}

/** Where the answer was lost the request may not have been, so the problem says where to look. */
async function handOver({ startRun, logger }: Starting, request: RunRequest): Promise<void> {
  const { params: _params, ...logged } = request.cronce;
  try {
    await startRun(request);
  } catch (cause) {
    const { job, slot } = logged;
    const detail =
      'The job’s function could not be invoked; `runs` shows whether a run came of it all the same.';
    throw new Problem(502, 'not_started', detail, {
      cause,
      extensions: { job, slot, runs: runsAt(job, slot) },
    });
  }
  logger.info('run requested', { request: logged });
}

/** What is left of the waiting, and somewhat more, for a session that is slow to come. */
function lookLimitMs(endsAt: number): number {
  return Math.max(0, Math.round(endsAt - performance.now())) + 2_000;
}

/** An event may be delivered twice: while one run of it goes on, the skip of the other is not the answer. */
async function outcomeSince(
  before: readonly RunRecord[],
  endsAt: number,
  look: () => Promise<RunRecord[]>,
): Promise<RunRecord | undefined> {
  const old = new Set(before.map(({ id }) => id));
  for (let pauseMs = 100; ; pauseMs = Math.min(pauseMs * 1.5, 1_000)) {
    const runs = (await look()).filter(({ id }) => !old.has(id));
    if (runs.length > 0 && runs.every(isOver))
      return runs.find(({ status }) => status !== 'skipped') ?? runs[0];
    const leftMs = endsAt - performance.now();
    if (leftMs <= 0) return undefined;
    await delay(Math.min(pauseMs, leftMs));
  }
}

export async function runsOf(
  session: Session,
  job: string,
  slot: string,
  deployment: string | undefined,
): Promise<RunRecord[]> {
  return findRuns(session, { job, slot, deployment, limit: 50 });
}

export function runsAt(job: string, slot: string): string {
  return `/runs?${new URLSearchParams({ job, slot }).toString()}`;
}
