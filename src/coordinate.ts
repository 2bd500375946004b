import { v7 as uuidV7 } from 'uuid';
import { endWithin } from './cancel.ts';
import { claimed, claimSql, claimTimeLimitMs, type Claimed } from './claim.ts';
import { entered, enterSql, enterTimeLimitMs, holdLock, lockOf, type Entered } from './lock.ts';
import { recordOutcome } from './outcome.ts';
import type { Target } from './postgres/driver.ts';
import { LockTimeout } from './postgres/errors.ts';
import { answerOf } from './postgres/record.ts';
import { Session } from './postgres/session.ts';
import { logOutcome, relay, type Sink } from './publish.ts';
import { isOver, type Logger, type RunRecord } from './run.ts';
import type { Delivery } from './trigger.ts';
import { performWork } from './work.ts';

/**
 * The whole path of one delivery, on one page:
 *
 *     claim   T0: record the start           one round trip to PostgreSQL
 *     lock    T1: hold the lock                for both
 *     work    the job's function, with tx, signal, fence
 *     outcome recorded and committed         one round trip
 *     publish after commit, from the stored record; what fails stays for later
 */
export interface Coordinator {
  readonly target: Target;
  /** The deployment's lease, ms; a job may set its own. */
  readonly leaseMs: number;
  readonly sinks: readonly Sink[];
  readonly publishTimeoutMs: number;
  readonly logger: Logger;
  /** Stands in for the server's clock, where time is simulated. */
  readonly clock?: () => Date;
}

/** What is kept of the invocation's time for recording an outcome before the kill, ms. */
export const recordingMs = 4_000;
const graceMs = 500;
const messageMs = 1_500;
const claimsAtMost = 10;

/**
 * Takes one delivery to its outcome, and answers the record of it as it stands in the database.
 * @param timeLeftMs until the invocation is killed
 * @throws {PostgresError} where no start could be recorded: nothing was run
 * @throws {OutcomeUnknown} where the outcome could not be recorded: the sweep will settle it
 */
export async function coordinate(
  delivery: Delivery,
  timeLeftMs: number,
  coordinator: Coordinator,
): Promise<RunRecord> {
  const path = new Path(delivery, timeLeftMs, coordinator);
  const session = await path.openSession();
  try {
    const claim = await path.claimAndLock(session);
    path.log(claim.settled);
    const run = isOver(claim.run) ? claim.run : await path.workUnderLock(session, claim);
    path.log([run]);
    await path.publish(session, run);
    return run;
  } finally {
    await session.close();
  }
}

interface Claim extends Claimed {
  readonly pid: number;
}

/** What the steps of one delivery share; made for it and gone with it. */
class Path {
  readonly #delivery: Delivery;
  readonly #coordinator: Coordinator;
  readonly #leaseMs: number;
  readonly #workEndsAt: number;

  constructor(delivery: Delivery, timeLeftMs: number, coordinator: Coordinator) {
    this.#delivery = delivery;
    this.#coordinator = coordinator;
    this.#leaseMs = delivery.job.leaseMs ?? coordinator.leaseMs;
    this.#workEndsAt = performance.now() + timeLeftMs - recordingMs;
  }

  readonly openSession = async (): Promise<Session> => Session.open(this.#coordinator.target);

  /** Claims, and claims anew where another delivery slipped in between T0 and T1; the highest fence always gets in. */
  async claimAndLock(session: Session): Promise<Claim> {
    const runId = uuidV7();
    const { job } = this.#delivery;
    if (job.overlap === 'replace') await replaceHolder(session, this.#delivery, job.waitMs);
    for (let again = 0; again < claimsAtMost; again++) {
      const claim = await this.#claimOnce(session, runId, again > 0).catch(onceMoreAfterTimeout(again));
      if (claim && (isOver(claim.run) || claim.entered)) return claim;
    }
    throw new LockTimeout(`the lock changed hands ${claimsAtMost} times before run ${runId} could enter`);
  }

  async #claimOnce(session: Session, runId: string, again: boolean): Promise<Claim & Entered> {
    const { job, slot, params } = this.#delivery;
    const waitMs = job.overlap === 'wait' ? Math.min(job.waitMs, Math.max(0, Math.floor(this.#workMs()))) : 0;
    const request = {
      runId,
      delivery: this.#delivery,
      lock: lockOf(job, slot, params),
      leaseMs: this.#leaseMs,
      waitMs,
      again,
      gapMs: enterTimeLimitMs + 1_000,
      published: this.#logOnly,
      ...this.#now(),
    };
    const message = [
      ...(again ? ['ROLLBACK'] : []),
      claimSql(session, request),
      enterSql(session, runId, { leaseMs: this.#leaseMs, workMs: this.#workMs() }),
    ].join('; ');
    const limitMs = claimTimeLimitMs(this.#leaseMs) + waitMs + enterTimeLimitMs + messageMs;
    const results = await session.send(message, limitMs);
    return { ...claimed(results), ...entered(results, this.#leaseMs) };
  }

  async workUnderLock(session: Session, claim: Claim): Promise<RunRecord> {
    const { run, restMs, pid } = claim;
    const { job } = this.#delivery;
    const hold = {
      runId: run.id,
      pid,
      lockKey: run.lockKey ?? '',
      leaseMs: this.#leaseMs,
      openWatch: this.openSession,
    };
    const lock = await holdLock(session, hold);
    const timeMs = Math.min(job.timeoutMs, this.#workMs());
    const { openSession } = this;
    const logger = this.#coordinator.logger;
    const result = await performWork({
      run,
      work: job.work,
      session,
      lock,
      timeMs,
      graceMs,
      restMs,
      logger,
      openSession,
    });
    await lock.letGo();
    const now = this.#now().now;
    return recordOutcome(result, {
      run,
      session,
      openSession,
      timeoutMs: messageMs,
      published: this.#logOnly,
      now,
    });
  }

  log(runs: readonly RunRecord[]): void {
    for (const run of runs) logOutcome(run, this.#coordinator.logger);
  }

  async publish(session: Session, run: RunRecord): Promise<void> {
    if (this.#logOnly) return;
    const { logger, sinks, publishTimeoutMs: timeoutMs } = this.#coordinator;
    const usable = session.lost.aborted ? await this.openSession().catch(() => null) : session;
    if (usable) await relay(usable, run.id, { sinks, logger, timeoutMs });
    if (usable !== session) await usable?.close();
  }

  #workMs(): number {
    return this.#workEndsAt - performance.now();
  }

  get #logOnly(): boolean {
    return this.#coordinator.sinks.length === 0;
  }

  #now(): { now?: Date } {
    const { clock } = this.#coordinator;
    return clock ? { now: clock() } : {};
  }
}

/** A stranger who queued for the lock got it between T0 and T1: the next claim will find it held. */
function onceMoreAfterTimeout(again: number): (error: unknown) => null {
  return (error) => {
    if (error instanceof LockTimeout && again === 0) return null;
    throw error;
  };
}

/** Ends the run of an earlier slot that holds this job's lock, within half the time that the job may wait. */
async function replaceHolder(
  session: Session,
  { job, slot, scheduledFor, params }: Delivery,
  waitMs: number,
): Promise<void> {
  const keys = lockOf(job, slot, params).keys.join(',');
  const sql =
    `SELECT cronce.request_replace(${session.literal(job.name)}, ${session.literal(slot)}, ` +
    `${session.literal(scheduledFor.toISOString())}, '{${keys}}') AS holder`;
  const holder = answerOf<string | null>(await session.send(sql), 'holder');
  if (holder !== null) await endWithin(session, holder, `the run of ${slot}`, waitMs / 2);
}
