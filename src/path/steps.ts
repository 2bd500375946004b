/**
 * The steps of a delivery's path, and what they share: this alone knows all of them, and how the time is divided among
 * them. In which order they come, `coordinate` says.
 */
import { v7 as uuidV7 } from 'uuid';
import { endWithin } from './cancel.ts';
import { captureError } from '../capture.ts';
import {
  claimed,
  claimSql,
  refuseSql,
  turnAwaySql,
  type Claimed,
  type ClaimRequest,
  type NotClaimed,
} from './claim.ts';
import { entered, enterSql, type Entered } from './enter.ts';
import { holdLock, type HeldLock } from './lock.ts';
import { lockOf } from '../lock-name.ts';
import {
  claimLimitMs,
  enterLimitMs,
  gapMs,
  graceMs,
  lockDelayMs,
  messageMs,
  passingOnMs,
  recordingMs,
} from './limits.ts';
import { recordOutcome } from './outcome.ts';
import { askFor, longestChain, nextOwed, notAsked, passesOn } from './owed.ts';
import type { Target } from '../postgres/driver.ts';
import { ConnectionLost, NoAnswer, poolCure, PostgresError, SchemaMismatch } from '../postgres/errors.ts';
import type { Observer } from '../observe/observer.ts';
import { Observers } from '../observe/observers.ts';
import { patiently } from '../postgres/patience.ts';
import { answerOf, toRecord } from '../postgres/record.ts';
import { Session } from '../postgres/session.ts';
import type { Sink } from '../sinks/sink.ts';
import { publish } from './publish.ts';
import { isOver, unnamedDeployment, type Logger, type RunRecord } from '../run.ts';
import type { WorkResult } from './ending.ts';
import type { Delivery, RunRequest } from './trigger.ts';
import { performWork } from './work.ts';

/** What a deployment gives each of its deliveries. */
export interface Coordinator {
  readonly target: Target;
  /** Service and stage, where several share a database. */
  readonly deployment?: string;
  /** The deployment's lease, ms; a job may set its own. */
  readonly leaseMs: number;
  readonly sinks: readonly Sink[];
  readonly publishTimeoutMs: number;
  readonly logger: Logger;
  /** Who else sees every step of a run. */
  readonly observers?: readonly Observer[];
  /** Hands a run to its job's function: where slots are owed, each run asks for the next. Absent, only the sweep does. */
  readonly deliver?: (request: RunRequest) => Promise<void>;
  /** How long the sweep keeps records, ms: a slot that was due earlier is too late, and owed no more. Absent, none is. */
  readonly retentionMs?: number;
  /** Stands in for the server's clock, where time is simulated. */
  readonly clock?: () => Date;
}

/** What T0 and T1 came to. */
export interface Attempted extends Claimed, Entered {}

/** A delivery that is on record: its run has entered, or is over already. */
export interface Claim extends Attempted {
  readonly session: Session;
}

/** A run inside its lock. */
export interface Held {
  readonly claim: Claim;
  readonly lock: HeldLock;
  /** The work's own time, ms, which begins after the lock delay. */
  readonly timeMs: number;
  /** On `performance.now()`'s clock. */
  readonly endsAt: number;
}

const claimsAtMost = 10;
/** A claim that a lock of someone else's, or a stranger in the queue, has turned away is made once more. */
const failuresAtMost = 2;

/** What the steps of one delivery share; made for it and gone with it. */
export class Path {
  #delivery: Delivery;
  readonly #coordinator: Coordinator;
  readonly #deployment: string;
  readonly #leaseMs: number;
  readonly #endsAt: number;
  readonly #observers: Observers;

  constructor(delivery: Delivery, timeLeftMs: number, coordinator: Coordinator) {
    this.#delivery = delivery;
    this.#coordinator = coordinator;
    this.#deployment = coordinator.deployment ?? unnamedDeployment;
    this.#leaseMs = delivery.job.leaseMs ?? coordinator.leaseMs;
    this.#endsAt = performance.now() + timeLeftMs;
    this.#observers = new Observers(coordinator.logger, coordinator.observers);
  }

  readonly openSession = async (): Promise<Session> =>
    Session.open(this.#coordinator.target, this.#connectLimit());

  /** Beside the connect limit: what the invocation has left for recording that there was no session. */
  #connectLimit(): { timeoutMs: number } {
    return { timeoutMs: Math.max(messageMs, this.#timeLeftMs() - messageMs) };
  }

  async claim(): Promise<Claim> {
    const claim = await this.#begin(async (session) => this.#claimAndLock(session));
    this.#observers.tell('claimed', claim.run);
    return claim;
  }

  /** Records that it can't be run. */
  async refuse(error: unknown): Promise<Claim> {
    const claim = await this.#begin(async (session) => this.#refuse(session, uuidV7(), error));
    this.#observers.tell('claimed', claim.run);
    return claim;
  }

  /**
   * Takes the first step on a session that connects with it. A server that is full or starting is asked again, for a minute and
   * for half of the invocation's time at most: Neon's own hosts say so only to the first message.
   */
  async #begin(step: (session: Session) => Promise<Attempted>): Promise<Claim> {
    return patiently(
      async () => {
        const session = await Session.atFirstMessage(this.#coordinator.target, this.#connectLimit());
        try {
          return { ...(await step(session)), session };
        } catch (error) {
          await session.close();
          throw error;
        }
      },
      Math.min(60_000, this.#timeLeftMs() / 2),
    );
  }

  /**
   * Claims, and claims anew where another delivery slipped in between T0 and T1 (the highest fence always gets in), where
   * the run in the way was asked to end, and once after an error. Whatever it meets, the delivery has its record.
   */
  async #claimAndLock(session: Session): Promise<Attempted> {
    const runId = uuidV7();
    const { job } = this.#delivery;
    // A slot that catches up asks nobody to give way: what came in its time goes first.
    const replaces = job.overlap === 'replace' && this.#delivery.trigger !== 'sweep';
    const replaceUntil = performance.now() + (replaces ? job.waitMs : 0);
    let failures = 0;
    for (let again = 0; again < claimsAtMost; again++) {
      const request = this.#request(runId, again > 0, performance.now() < replaceUntil);
      if ('refused' in request) return this.#refuse(session, runId, request.refused);
      const claim = await this.#claimOnce(session, request).catch(unlessHopeless(session));
      if (claim instanceof PostgresError) {
        failures += 1;
        if (failures === failuresAtMost) return this.#turnAway(session, request, claim);
      } else if (claim.kind === 'guessed') {
        this.#delivery = { ...this.#delivery, slot: claim.slot, scheduledFor: claim.scheduledFor };
      } else if (claim.kind === 'replace') {
        await session.send('ROLLBACK', messageMs); // of T1, which had nothing to enter for
        const patienceMs = Math.max(0, replaceUntil - performance.now()) / 2;
        await endWithin(session, claim.holder, `the run of ${this.#delivery.slot}`, patienceMs);
      } else if (isOver(claim.run) || claim.entered) {
        return claim;
      }
    }
    const why = `the lock changed hands ${claimsAtMost} times before the run could enter`;
    return this.#turnAway(session, this.#request(runId, true, false) as ClaimRequest, new PostgresError(why));
  }

  /** What to claim; or, where the lock can't even be named, why not. */
  #request(runId: string, again: boolean, replace: boolean): ClaimRequest | Refused {
    const { job, slot, params } = this.#delivery;
    try {
      const lock = lockOf(job, slot, params, this.#deployment);
      return { ...this.#unlocked(runId, again, replace), lock };
    } catch (refused) {
      return { refused };
    }
  }

  #unlocked(runId: string, again: boolean, replace: boolean): Omit<ClaimRequest, 'lock'> {
    const { job } = this.#delivery;
    const workMs = Math.max(0, Math.floor(this.#workMs()));
    return {
      runId,
      delivery: this.#delivery,
      deployment: this.#deployment,
      leaseMs: this.#leaseMs,
      lockDelayMs: lockDelayMs(job.lockDelayMs, this.#leaseMs),
      timeLeftMs: workMs,
      waitMs: job.overlap === 'wait' ? Math.min(job.waitMs, workMs) : 0,
      replace,
      again,
      retentionMs: this.#coordinator.retentionMs ?? null,
      gapMs,
      ...this.#now(),
    };
  }

  async #claimOnce(session: Session, request: ClaimRequest): Promise<Attempted | NotClaimed> {
    const message = [
      'ROLLBACK',
      claimSql(session, request),
      enterSql(session, request.runId, { leaseMs: this.#leaseMs, workMs: this.#workMs() }),
    ]
      .slice(request.again ? 0 : 1)
      .join('; ');
    const limitMs = this.#claimLimitMs(request);
    const results = await session.send(message, limitMs).catch((error: unknown) => {
      throw error instanceof NoAnswer ? new NoAnswer(limitMs, poolCure) : error;
    });
    const claim = claimed(results);
    if (claim.kind !== 'claimed') return claim;
    const inside = entered(results, this.#leaseMs);
    session.answeredBy(inside.pid);
    return { ...claim, ...inside };
  }

  /** The first message may be in the queue of a pooler, which serves us in our turn. */
  #claimLimitMs({ waitMs, again }: ClaimRequest): number {
    const claimMs = claimLimitMs + waitMs + enterLimitMs + messageMs;
    const queueMs = again ? 0 : this.#timeLeftMs() / 2;
    return Math.min(Math.max(claimMs, queueMs), Math.max(messageMs, this.#timeLeftMs() - graceMs));
  }

  async #turnAway(session: Session, request: ClaimRequest, error: PostgresError): Promise<Attempted> {
    return this.#recorded(session, turnAwaySql(session, request, error.message));
  }

  async #refuse(session: Session, runId: string, error: unknown): Promise<Attempted> {
    return this.#recorded(
      session,
      refuseSql(session, this.#unlocked(runId, false, false), captureError(error)),
    );
  }

  async #recorded(session: Session, sql: string): Promise<Attempted> {
    const results = await session.send(`ROLLBACK; ${sql}`, Math.max(messageMs, this.#timeLeftMs()));
    const run = toRecord(answerOf<RunRecord>(results, 'recorded'));
    return { kind: 'claimed', run, settled: [], restMs: 0, owes: false, entered: false, pid: 0 };
  }

  /** The lock is taken; from here on it is beaten for, and vouched for. */
  async hold(claim: Claim): Promise<Held> {
    const { session, run, restMs, pid } = claim;
    const hold = { runId: run.id, pid, lockKey: run.lockKey ?? '', leaseMs: this.#leaseMs };
    const lock = await holdLock(session, { ...hold, openWatch: this.openSession });
    this.#observers.tell('entered', run);
    const timeMs = Math.min(this.#delivery.job.timeoutMs, this.#workMs() - restMs);
    return { claim, lock, timeMs, endsAt: performance.now() + restMs + timeMs };
  }

  async perform({ claim, lock, timeMs }: Held): Promise<WorkResult> {
    const { session, run, pid, restMs } = claim;
    const { logger } = this.#coordinator;
    const { work } = this.#delivery.job;
    const { openSession } = this;
    const options = { run, work, session, pid, lock, timeMs, graceMs, restMs, logger, openSession };
    const result = await performWork(options);
    this.#observers.tell('performed', run, result.kind);
    return result;
  }

  async record({ claim: { run, session }, lock, endsAt }: Held, result: WorkResult): Promise<RunRecord> {
    lock.commit();
    return recordOutcome(result, {
      run,
      session,
      openSession: async () =>
        patiently(this.openSession, Math.min(recordingMs, this.#timeLeftMs() - messageMs)),
      workLeftMs: () => endsAt - performance.now(),
      timeLeftMs: () => this.#timeLeftMs(),
      now: this.#now().now,
    });
  }

  /** With the run those dead predecessors that its claim has settled. */
  async publish({ session, settled }: Claim, run: RunRecord): Promise<void> {
    const { logger, sinks, publishTimeoutMs: timeoutMs } = this.#coordinator;
    const usable =
      session.lost.aborted && sinks.length > 0 ? await this.openSession().catch(() => session) : session;
    const options = {
      sinks,
      logger,
      timeoutMs,
      deployment: this.#deployment,
      observers: this.#observers,
    };
    await publish(usable, [...settled, run], options);
    this.#observers.tell('published', run);
    if (usable !== session) await usable.close();
  }

  /**
   * Where slots are owed, asks for the next: they run one after another, whoever ends. On a session of its own, since the
   * run's may be lost or has said goodbye. Never throws: what is not asked for here, the sweep asks for.
   */
  async passOn({ owes }: Claim, run: RunRecord): Promise<void> {
    const { deliver, logger } = this.#coordinator;
    const chain = (this.#delivery.chain ?? 0) + 1;
    if (!deliver || chain > longestChain || !passesOn(run, owes) || this.#timeLeftMs() < passingOnMs) return;
    try {
      await this.#askForNext(run.job, chain, deliver);
    } catch (error) {
      logger.warn(`${run.job}: the next owed slot was not asked for; the sweep will`, {
        error: String(error),
      });
    }
  }

  async #askForNext(job: string, chain: number, deliver: NonNullable<Coordinator['deliver']>): Promise<void> {
    const session = await this.openSession();
    try {
      const of = { deployment: this.#deployment, job, retentionMs: this.#coordinator.retentionMs ?? null };
      const debt = await nextOwed(session, { ...of, ...this.#now() });
      if (!debt) return;
      await askFor(debt, chain, deliver, async () => notAsked(session, debt));
    } finally {
      await session.close();
    }
  }

  #workMs(): number {
    return this.#timeLeftMs() - recordingMs;
  }

  #timeLeftMs(): number {
    return this.#endsAt - performance.now();
  }

  #now(): { now?: Date } {
    const { clock } = this.#coordinator;
    return clock ? { now: clock() } : {};
  }
}

/** The lock of this delivery can't be named. */
interface Refused {
  readonly refused: unknown;
}

/** An error of the server's over a living connection can be claimed around; anything else can't. */
function unlessHopeless(session: Session): (error: unknown) => PostgresError {
  return (error) => {
    const canGoOn =
      error instanceof PostgresError &&
      error.code !== null &&
      !session.lost.aborted &&
      !(error instanceof ConnectionLost || error instanceof SchemaMismatch);
    if (canGoOn && !/^(?:42|28|3D|25006|CR003)/.test(error.code)) return error;
    throw error;
  };
}
