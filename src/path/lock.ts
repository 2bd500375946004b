import type { QueryResult } from '../postgres/driver.ts';
import { begin, call, callSql, limitsSql, type Quoting } from '../postgres/call.ts';
import { answerOf } from '../postgres/record.ts';
import { ConnectionLost, PostgresError, TransactionAborted } from '../postgres/errors.ts';
import { elapsedMs, type Moment } from '../postgres/moment.ts';
import type { Session } from '../postgres/session.ts';
import type { Status } from '../run.ts';
import { Stop } from './ending.ts';
import { enterLimitMs, enterWaitMs, rhythm } from './limits.ts';

/**
 * This step's secret: how the lock is held, and how its holder knows that it still does.
 *
 * Authority: PostgreSQL. The lock is a transaction advisory lock; it lives exactly as long as the transaction T1.
 * Trust window: the server ends T1 once it has heard nothing for a lease (idle_in_transaction_session_timeout, its
 * own timer, so there are no clocks to compare). The holder counts from the *sending* of the last message that was
 * answered, which is never later than the server's hearing of it, and gives up a margin before the lease would end.
 * Failure: a vanished, frozen or cut-off holder loses the lock within one lease; it can't commit afterwards, since
 * the transaction to commit is gone.
 */

export { checkLocks, LockNameError, lockKey, lockOf, type LockNames } from '../lock-name.ts';

/** T1, as one run of statements, to follow T0 in the same message. It stays open: it is the lock. */
export function enterSql(
  session: Quoting,
  runId: string,
  limits: { leaseMs: number; workMs: number },
): string {
  const { leaseMs, workMs } = limits;
  return [
    begin,
    limitsSql({ statementMs: enterLimitMs, lockMs: enterWaitMs, idleMs: leaseMs }),
    `SELECT ${call(session, 'enter', runId)} AS entered`,
    'SET LOCAL lock_timeout TO DEFAULT',
    `SET LOCAL statement_timeout = ${Math.max(1, Math.ceil(workMs))}`,
    'SAVEPOINT work',
  ].join('; ');
}

export interface Entered {
  /** False where the run was skipped, or must give way to a higher fence. */
  readonly entered: boolean;
  readonly pid: number;
}

/** @throws {PostgresError} if the server does not apply the lease that was asked for */
export function entered(results: readonly QueryResult[], leaseMs: number): Entered {
  const answer = answerOf<{ entered: boolean; pid: number; lease: string }>(results, 'entered');
  checkLease(answer.lease, leaseMs);
  return answer;
}

function checkLease(applied: string, leaseMs: number): void {
  if (milliseconds(applied) === leaseMs) return;
  throw new PostgresError(
    `the server applies a lease of ${applied} instead of ${leaseMs} ms: ` +
      'let the coordinator’s role set idle_in_transaction_session_timeout, and no job change it',
  );
}

/** A time setting as the server shows it: the largest unit that divides it, or a bare 0. */
function milliseconds(shown: string): number {
  const unitMs: Readonly<Record<string, number>> = {
    ms: 1,
    s: 1_000,
    min: 60_000,
    h: 3_600_000,
    d: 86_400_000,
  };
  const [, amount, unit] = shown.match(/^(\d+)(ms|s|min|h|d)?$/) ?? [];
  return Number(amount) * (unitMs[unit ?? 'ms'] ?? 1);
}

export interface HeldLock {
  /** Aborts with a {@link Stop}: `lock_lost` or `cancelled`. */
  readonly signal: AbortSignal;
  /** @throws {Stop} if the lease can no longer be vouched for */
  check(): void;
  /** From now on the outcome is being recorded: who has ended the run, or wants to, is found by the record itself. */
  commit(): void;
  /** Ends heartbeat and countdown. The lock itself goes with the transaction. */
  letGo(): Promise<void>;
}

interface HoldOptions {
  readonly runId: string;
  readonly pid: number;
  readonly lockKey: string;
  readonly leaseMs: number;
  /** A second session, asked for only when a statement runs so long that heartbeats can't pass it. */
  readonly openWatch: () => Promise<Session>;
}

/** Keeps the lock of `session`'s open transaction, and knows when it can't. */
export async function holdLock(session: Session, options: HoldOptions): Promise<HeldLock> {
  const keeper = new Keeper(session, options);
  await keeper.start();
  return keeper;
}

class Keeper implements HeldLock {
  readonly #session: Session;
  readonly #options: HoldOptions;
  readonly #abort = new AbortController();
  readonly #beatMs: number;
  readonly #vouchMs: number;
  #watched: Moment | null = null;
  #watch: Session | null = null;
  #watching = false;
  #over = false;
  #committing = false;
  #beating: ReturnType<typeof setInterval> | undefined;
  #countdown: ReturnType<typeof setTimeout> | undefined;

  constructor(session: Session, options: HoldOptions) {
    this.#session = session;
    this.#options = options;
    const { beatMs, marginMs } = rhythm(options.leaseMs);
    this.#beatMs = beatMs;
    this.#vouchMs = options.leaseMs - marginMs;
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  async start(): Promise<void> {
    // Waiting for a held lock can take longer than a lease: then what counts is an answer from now.
    if (this.#remainingMs() < this.#vouchMs - this.#beatMs) await this.#tick();
    this.#session.lost.addEventListener('abort', this.#onConnectionLost, { once: true });
    if (this.#session.lost.aborted) this.#onConnectionLost();
    this.#beating = setInterval(() => void this.#tick(), this.#beatMs);
    this.#count();
  }

  check(): void {
    if (this.#remainingMs() <= 0) this.#give(this.#silence());
    if (this.#abort.signal.aborted) throw this.#abort.signal.reason as Stop;
  }

  commit(): void {
    this.#committing = true;
  }

  async letGo(): Promise<void> {
    clearInterval(this.#beating);
    clearTimeout(this.#countdown);
    this.#session.lost.removeEventListener('abort', this.#onConnectionLost);
    this.#over = true;
    await this.#watch?.close();
  }

  readonly #onConnectionLost = () => {
    const cause = this.#session.lost.reason as PostgresError;
    this.#give(new Stop('lock_lost', `the lock's connection is gone: ${cause.message}`, { cause }));
  };

  /** Abandons the lock: the signal first, so that work hears of it before the server lets anyone in. */
  #give(stop: Stop): void {
    if (this.#abort.signal.aborted) return;
    this.#abort.abort(stop);
    if (stop.reason === 'lock_lost') this.#session.destroy(new ConnectionLost(stop.message));
  }

  /** How long the lock can still be vouched for. */
  #remainingMs(): number {
    const heard = elapsedMs(this.#session.answeredMessageSentAt);
    const watched = this.#watched === null ? Infinity : elapsedMs(this.#watched);
    return this.#vouchMs - Math.min(heard, watched);
  }

  #silence(): Stop {
    return new Stop(
      'lock_lost',
      `nothing was heard of the server for ${this.#vouchMs} ms of the lease of ${this.#options.leaseMs}`,
    );
  }

  #count(): void {
    const remainingMs = this.#remainingMs();
    if (remainingMs <= 0) this.#give(this.#silence());
    else this.#countdown = setTimeout(() => this.#count(), Math.min(remainingMs, this.#beatMs));
  }

  async #tick(): Promise<void> {
    try {
      if (this.#session.underWaySince === null) await this.#beat();
      else if (elapsedMs(this.#session.underWaySince) >= this.#beatMs / 2) await this.#look();
    } catch (error) {
      // What keeps us from hearing of the server is left to the countdown; a lease that was changed is not.
      if (error instanceof PostgresError && error.code === null && !(error instanceof ConnectionLost))
        this.#give(new Stop('lock_lost', error.message, { cause: error }));
    }
  }

  /**
   * Hears of a cancel, and of a run that was settled by someone else. The job may have become another role in this
   * transaction, or set what it likes: the look is made as ourselves, in a subtransaction that is rolled back, which
   * puts the job's role and settings back and leaves no lock on our tables. Then the lease is set again.
   */
  async #beat(): Promise<void> {
    const { runId, leaseMs } = this.#options;
    const sql = [
      'SAVEPOINT cronce_beat',
      'SET LOCAL statement_timeout = 0',
      'SET LOCAL ROLE NONE',
      `SET LOCAL lock_timeout = ${Math.ceil(this.#beatMs / 2)}`,
      `SELECT ${call(this.#session, 'beat', runId)} AS beat`,
      'ROLLBACK TO cronce_beat',
      'RELEASE cronce_beat',
      `SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '${leaseMs}', true) AS lease`,
    ].join('; ');
    try {
      const answers = await this.#session.send(sql, leaseMs);
      checkLease(answerOf<string>(answers, 'lease'), leaseMs);
      this.#heed(answerOf<Heard | null>(answers, 'beat'));
    } catch (error) {
      if (error instanceof TransactionAborted) return; // heard all the same: the work has met an SQL error
      throw error;
    }
  }

  /**
   * While a statement runs, no heartbeat gets through, and the server's idle timer stands still. A second session
   * sees that the backend is at work and holds the lock: from then on it has at least one lease.
   */
  async #look(): Promise<void> {
    if (this.#watching) return;
    this.#watching = true;
    try {
      this.#watch ??= await this.#options.openWatch();
      const { pid, lockKey, runId, leaseMs } = this.#options;
      const seeing = call(this.#watch, 'watch', pid, BigInt(lockKey), runId);
      const results = await this.#watch.send(callSql(seeing, 'watched'), leaseMs);
      const seen = answerOf<(Heard & { atWork: boolean }) | null>(results, 'watched');
      if (seen?.atWork) this.#watched = this.#watch.answeredMessageSentAt;
      this.#heed(seen);
    } catch (error) {
      this.#watch?.destroy(new ConnectionLost('the watching session failed', { cause: error }));
      this.#watch = null;
    } finally {
      this.#watching = false;
      if (this.#over) await this.#watch?.close(); // it was still being opened when the lock was let go
    }
  }

  #heed(heard: Heard | null): void {
    if (heard === null || this.#committing) return;
    const { stands, status, cancelBy } = heard;
    if (cancelBy !== null) this.#give(new Stop('cancelled', `cancelled by ${cancelBy}`));
    else if (!stands)
      this.#give(new Stop('lock_lost', `the run no longer stands: it is on record as ${String(status)}`));
  }
}

/** What a heartbeat hears of its run. */
interface Heard {
  readonly stands: boolean;
  readonly status: Status | null;
  readonly cancelBy: string | null;
}
