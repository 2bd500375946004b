import { setTimeout as delay } from 'node:timers/promises';
import { findRuns } from '../operate/history.ts';
import { settleKey, takeKey, type KeyedRequest } from '../operate/idempotency.ts';
import type { Session } from '../postgres/session.ts';
import { isOver, unnamedDeployment, type Logger, type RunRecord } from '../run.ts';
import type { RunRequest } from '../path/trigger.ts';
import { lend } from './lend.ts';
import type { ManualRun } from './manual-run.ts';
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
  /** How long an idempotency key is remembered, ms; default 30 days. */
  readonly keepKeysMs?: number;
  /** What comes before the path of every link: a stage of API Gateway, such as `/prod`. */
  readonly base?: string;
}

/** For the two looks of a keyed request, and the invocation of 3 s between them, ms. */
const keyedLimitMs = 15_000;
const monthMs = 30 * 86_400_000;

/**
 * Starts the run, or with a key finds the one that was started by it, and waits for its outcome for at most `waitMs`.
 * Undefined where that is not long enough, or where the database keeps us from looking: what is started stays started.
 * @throws {Problem} 502, where it could not be started; 409 and 422 of a key
 */
export async function start(
  parts: Starting,
  { request, key }: ManualRun,
  waitMs: number,
): Promise<RunRecord | undefined> {
  const { job, slot } = request.cronce;
  const endsAt = performance.now() + waitMs;
  const look = async <T>(use: (session: Session) => Promise<T>) =>
    lend(parts.openSession, lookLimitMs(endsAt), use).catch((error: unknown) => {
      parts.logger.warn('could not look for the outcome', { error });
      return undefined;
    });
  const runs = async (session: Session) => runsOf(session, job, slot, parts.deployment);
  if (key !== null) {
    const isOurs = await startOnce(parts, request, key);
    if (isOurs && waitMs === 0) return undefined;
    return look(async (session) => outcomeSince([], endsAt, async () => runs(session)));
  }
  const before = waitMs > 0 ? await look(runs) : undefined;
  await handOver(parts, request);
  return before && look(async (session) => outcomeSince(before, endsAt, async () => runs(session)));
}

/** Whether this very request has started it. */
async function startOnce(
  parts: Starting,
  request: RunRequest,
  key: NonNullable<ManualRun['key']>,
): Promise<boolean> {
  const { deployment = unnamedDeployment, keepKeysMs: keepMs = monthMs } = parts;
  const { job, scheduledFor, params = null } = request.cronce;
  const of = { fingerprint: key.fingerprint, scheduledFor: scheduledFor ?? '', params };
  const keyed: KeyedRequest = { deployment, key: key.name, job, keepMs, ...of };
  return lend(parts.openSession, keyedLimitMs, async (session) => {
    const taken = await takeKey(session, keyed);
    if (taken.state === 'started') return false;
    if (taken.state !== 'taken') throw taken.state === 'other' ? reused() : inUse();
    const asFirst = { cronce: { ...request.cronce, scheduledFor: taken.scheduledFor } };
    const settle = async (handed: boolean) =>
      settleKey(session, keyed, handed).catch((error: unknown) => {
        parts.logger.warn('could not record what became of a key; it settles itself', { error });
      });
    await handOver(parts, asFirst).catch(async (error: unknown) => {
      await settle(false);
      throw error;
    });
    await settle(true);
    return true;
  });
}

function reused(): Problem {
  const detail = 'That Idempotency-Key stands for another request; give each request a key of its own.';
  return new Problem(422, 'key_reused', detail, { extensions: { header: 'idempotency-key' } });
}

function inUse(): Problem {
  const detail = 'A request with that Idempotency-Key is just starting its run; ask again in a moment.';
  return new Problem(409, 'key_in_use', detail, { headers: { 'retry-after': '1' } });
}

/** Where the answer was lost the request may not have been, so the problem says where to look. */
async function handOver({ startRun, logger, base }: Starting, request: RunRequest): Promise<void> {
  const { params: _params, ...logged } = request.cronce;
  try {
    await startRun(request);
  } catch (cause) {
    const { job, slot } = logged;
    const detail =
      'The job’s function could not be invoked; `runs` shows whether a run came of it all the same.';
    throw new Problem(502, 'not_started', detail, {
      cause,
      extensions: { job, slot, runs: runsAt(job, slot, base) },
    });
  }
  logger.info('run requested', { request: logged });
}

/** What is left of the waiting, and somewhat more, for a session that is slow to come. */
function lookLimitMs(endsAt: number): number {
  return Math.max(0, Math.round(endsAt - performance.now())) + 2_000;
}

async function outcomeSince(
  before: readonly RunRecord[],
  endsAt: number,
  look: () => Promise<RunRecord[]>,
): Promise<RunRecord | undefined> {
  const old = new Set(before.map(({ id }) => id));
  for (let pauseMs = 100; ; pauseMs = Math.min(pauseMs * 1.5, 1_000)) {
    const run = outcomeOf((await look()).filter(({ id }) => !old.has(id)));
    if (run) return run;
    const leftMs = endsAt - performance.now();
    if (leftMs <= 0) return undefined;
    await delay(Math.min(pauseMs, leftMs));
  }
}

/**
 * What deliveries of one slot have come to, newest first. An event may be delivered twice: while one run of it goes on,
 * the skip of the other is not the answer, nor is it beside one that has run.
 */
function outcomeOf(runs: readonly RunRecord[]): RunRecord | undefined {
  if (!runs.every(isOver)) return undefined;
  const started = runs.filter(({ status }) => status !== 'skipped');
  return started.find(({ status }) => status === 'succeeded') ?? started[0] ?? runs.at(-1);
}

export async function runsOf(
  session: Session,
  job: string,
  slot: string,
  deployment: string | undefined,
): Promise<RunRecord[]> {
  return findRuns(session, { job, slot, deployment, limit: 50 });
}

export function runsAt(job: string, slot: string, base = ''): string {
  return `${base}/runs?${new URLSearchParams({ job, slot }).toString()}`;
}
