import { v7 as uuidV7 } from 'uuid';
import { defineJob, type Job, type JobSchedule, type Registry, type WorkContext } from './job.ts';
import { enterTimeLimitMs, lockOf } from './lock.ts';
import { matches, occurrencesBetween } from './occurrences.ts';
import { toRecord } from './postgres/record.ts';
import type { Session } from './postgres/session.ts';
import { logOutcome, relay, type PublishOptions } from './publish.ts';
import type { RunRecord } from './run.ts';
import { slotName, type RunRequest } from './trigger.ts';

/**
 * The periodic pass that settles what dead invocations left behind, and accounts for every due slot. Itself a job under
 * the coordinator. Each step commits by itself, fenced, and does nothing twice: one that is cut short goes on next time.
 */
export interface SweepOptions extends PublishOptions {
  readonly registry: Registry;
  /** Hands a run to its job's function. */
  readonly deliver: (request: RunRequest) => Promise<void>;
  readonly openSession: () => Promise<Session>;
  /** Runs that ended longer ago are deleted, ms; at least two days, since a late duplicate is known by its slot's record. */
  readonly retentionMs: number;
  /** A due slot is missed once nothing came for so long, ms; default 5 min. */
  readonly missedAfterMs?: number;
  /** A slot whose run went wrong is delivered again once no retry came for so long, ms; default 10 min. */
  readonly patienceMs?: number;
  /** How long a start record may stand without its lock, ms. */
  readonly gapMs?: number;
  readonly clock?: () => Date;
}

/** What a sweep did, in numbers; its run's output. */
export interface Swept {
  settled: number;
  missed: number;
  paused: number;
  caughtUp: number;
  redelivered: number;
  published: number;
  pruned: number;
}

export const sweepName = 'sweep';

/** So many rows a statement: a day's outage of a job that is due each minute takes two or three passes. */
const batch = 500;

/** How much of what is in order each pass may look at again, rather than write down that it was. */
const recheckedMs = 6 * 3_600_000;

export function sweepJob(options: SweepOptions): Job {
  return defineJob({
    name: sweepName,
    description: 'Settles what dead invocations left behind, and accounts for every due slot.',
    schedule: 'rate(5 minutes)',
    timeoutMs: 240_000,
    retries: 0,
    async work(context) {
      const sweep = new Sweep(options, context);
      return sweep.all();
    },
  });
}

interface Known {
  readonly job: string;
  readonly expression: string;
  readonly timeZone: string;
  readonly knownSince: string;
  readonly accountedUntil: string;
}

class Sweep {
  readonly #options: SweepOptions;
  readonly #context: WorkContext;
  readonly #now: Date;
  readonly #done: Swept = {
    settled: 0,
    missed: 0,
    paused: 0,
    caughtUp: 0,
    redelivered: 0,
    published: 0,
    pruned: 0,
  };
  readonly #failures: unknown[] = [];

  constructor(options: SweepOptions, context: WorkContext) {
    this.#options = options;
    this.#context = context;
    this.#now = options.clock?.() ?? new Date();
  }

  /** One step that fails keeps no other from its turn; the run fails at the end, and says what did. */
  async all(): Promise<Swept> {
    await this.#attempt(() => this.#settle());
    await this.#attempt(() => this.#accountAll());
    await this.#attempt(() => this.#deliverAbandoned());
    await this.#attempt(() => this.#prune());
    await this.#attempt(() => this.#relay());
    if (this.#failures.length > 0)
      throw new AggregateError(this.#failures, `the sweep could not do all: ${JSON.stringify(this.#done)}`);
    return this.#done;
  }

  async #attempt(step: () => Promise<void>): Promise<void> {
    this.#context.signal.throwIfAborted();
    try {
      await step();
    } catch (error) {
      this.#failures.push(error);
    }
  }

  async #settle(): Promise<void> {
    const gapMs = this.#options.gapMs ?? enterTimeLimitMs + 1_000;
    const settled = await this.#records('SELECT cronce.settle_orphans($1, $2, $3, $4) AS answer', [
      gapMs,
      batch,
      this.#at,
      this.#logOnly,
    ]);
    this.#done.settled = settled.length;
  }

  async #accountAll(): Promise<void> {
    const given = this.#deployed().map(({ job, schedule: { schedule, timeZone } }) => ({
      job: job.name,
      expression: schedule.expression,
      timeZone,
    }));
    const known = await this.#write<Known[]>('SELECT cronce.know_schedules($1, $2) AS answer', [
      JSON.stringify(given),
      this.#now.toISOString(),
    ]);
    for (const one of known) await this.#attempt(() => this.#account(one));
  }

  #deployed(): { job: Job; schedule: JobSchedule }[] {
    const jobs = [...this.#options.registry.values()].filter(({ enabled }) => enabled);
    return jobs.flatMap((job) =>
      job.schedules.filter(({ enabled }) => enabled).map((schedule) => ({ job, schedule })),
    );
  }

  /**
   * Delivers first and records then: what is cut short in between is delivered again, which its slot forgives; the
   * other way round it would be forgotten.
   */
  async #account(known: Known): Promise<void> {
    const found = this.#deployed().find(
      ({ job, schedule }) =>
        job.name === known.job &&
        schedule.schedule.expression === known.expression &&
        schedule.timeZone === known.timeZone,
    );
    if (!found) return;
    const { job, schedule } = found;
    const phase = schedule.schedule.kind === 'rate' ? await this.#phaseOf(known, job) : null;
    const { due, until } = this.#dueSlots(known, schedule, phase);
    const missed = due.length > 0 ? await this.#undelivered(job, schedule, due) : [];
    // A rate that was never delivered has no phase to name a slot by: a late first event would run it once more.
    const certain = schedule.schedule.kind === 'cron' || phase !== null;
    for (const at of certain ? await this.#toCatchUp(job, missed) : [])
      await this.#deliver(job, slotName(at), null, 'caughtUp');
    const unchecked = until.getTime() - new Date(known.accountedUntil).getTime();
    if (missed.length > 0 || unchecked > recheckedMs) await this.#record(known, job, missed, until);
  }

  /** The due times that are not accounted for yet and old enough; of a long outage the oldest, the rest next time. */
  #dueSlots(known: Known, schedule: JobSchedule, phase: Date | null): { due: Date[]; until: Date } {
    const graceMs = (this.#options.missedAfterMs ?? 300_000) + (schedule.flexibleMinutes ?? 0) * 60_000;
    const after = laterOf(laterOf(new Date(known.accountedUntil), schedule.start), owesFrom(known, schedule));
    const until = earlierOf(new Date(this.#now.getTime() - graceMs), schedule.end);
    if (until <= after) return { due: [], until: after };
    const anchor = phase ?? new Date(known.knownSince);
    const due: Date[] = [];
    for (const at of occurrencesBetween(schedule.schedule, after, until, schedule.timeZone, anchor)) {
      due.push(at);
      if (due.length === batch) return { due, until: at };
    }
    return { due, until };
  }

  /** A rate's phase is set when its rule is made. Its last delivery shows it; one of before belongs to another rule. */
  async #phaseOf({ job: name, knownSince }: Known, job: Job): Promise<Date | null> {
    const times = await this.#look<string[]>(
      `SELECT coalesce(jsonb_agg(t.at), '[]') AS answer FROM (
         SELECT DISTINCT scheduled_for AS at FROM cronce.run
         WHERE job = $1 AND trigger IN ('rule', 'scheduler') AND NOT slot_guessed AND scheduled_for BETWEEN $2 AND $3
         ORDER BY 1 DESC LIMIT 100) t`,
      [name, knownSince, this.#now.toISOString()],
    );
    const ofRate = times.map((time) => new Date(time)).filter((at) => !isOfCron(job, at));
    return ofRate.sort((one, other) => other.getTime() - one.getTime())[0] ?? null;
  }

  /** A rate's phase is known to the second only: any delivery within half its interval counts, but not a cron's. */
  async #undelivered(job: Job, { schedule }: JobSchedule, due: readonly Date[]): Promise<Date[]> {
    const toleranceMs = schedule.kind === 'rate' ? Math.floor(schedule.everyMs / 2) : 0;
    const [first, last] = [due[0]?.getTime() ?? 0, due.at(-1)?.getTime() ?? 0];
    const times = await this.#look<string[]>('SELECT to_jsonb(cronce.delivered($1, $2, $3)) AS answer', [
      job.name,
      new Date(first - toleranceMs).toISOString(),
      new Date(last + toleranceMs).toISOString(),
    ]);
    const delivered = times
      .map((time) => new Date(time))
      .filter((at) => toleranceMs === 0 || !isOfCron(job, at));
    return due.filter(
      (at) => !delivered.some((one) => Math.abs(one.getTime() - at.getTime()) <= toleranceMs),
    );
  }

  /** Of missed slots those that shall run late: none of a time when the job was paused, or is, or that would be too late. */
  async #toCatchUp(job: Job, missed: readonly Date[]): Promise<readonly Date[]> {
    if (job.catchUp === 'skip' || missed.length === 0) return [];
    const wanted = await this.#look<string[] | null>(
      `SELECT jsonb_agg(d ORDER BY d) AS answer FROM unnest($2::timestamptz[]) d
       WHERE NOT EXISTS (SELECT FROM cronce.pause z WHERE z.job = $1
                         AND (z.resumed_at IS NULL OR (d >= z.paused_at AND d < z.resumed_at)))`,
      [job.name, missed.map((at) => at.toISOString())],
    );
    const earliest = job.startDeadlineMs === null ? -Infinity : this.#now.getTime() - job.startDeadlineMs;
    const slots = (wanted ?? []).map((time) => new Date(time)).filter((at) => at.getTime() >= earliest);
    return job.catchUp === 'one' ? slots.slice(-1) : slots.slice(0, job.catchUpLimit);
  }

  async #record(known: Known, job: Job, missed: readonly Date[], until: Date): Promise<void> {
    const slots = missed.map((at) => ({ id: uuidV7(), slot: slotName(at), scheduledFor: at.toISOString() }));
    const lockName = lockOf(job, slots[0]?.slot ?? '', null).name;
    const { job: name, expression, timeZone } = known;
    const account = {
      job: name,
      expression,
      timeZone,
      lockName,
      until,
      now: this.#at,
      published: this.#logOnly,
      slots,
    };
    const records = await this.#records('SELECT cronce.account($1) AS answer', [JSON.stringify(account)]);
    this.#done.missed += records.filter(({ status }) => status === 'missed').length;
    this.#done.paused += records.filter(({ status }) => status === 'skipped').length;
  }

  async #deliverAbandoned(): Promise<void> {
    const { patienceMs = 600_000 } = this.#options;
    const abandoned = await this.#look<RunRecord[]>('SELECT cronce.abandoned($1, $2, $3, $4) AS answer', [
      patienceMs,
      batch,
      this.#at,
      this.#retainedSince,
    ]);
    for (const run of abandoned) {
      const job = this.#options.registry.get(run.job);
      if (job) await this.#attempt(() => this.#deliver(job, run.slot, run.params, 'redelivered'));
    }
  }

  async #deliver(
    job: Job,
    slot: string,
    params: RunRecord['params'],
    counter: 'caughtUp' | 'redelivered',
  ): Promise<void> {
    this.#context.check();
    await this.#options.deliver({ cronce: { job: job.name, trigger: 'sweep', slot, params } });
    this.#done[counter] += 1;
  }

  async #prune(): Promise<void> {
    const before = this.#retainedSince;
    let gone = batch;
    while (gone === batch && !this.#context.signal.aborted) {
      gone = await this.#write<number>('SELECT cronce.prune($1, $2) AS answer', [before, batch]);
      this.#done.pruned += gone;
    }
  }

  async #relay(): Promise<void> {
    if (this.#logOnly) return;
    const session = await this.#options.openSession();
    try {
      let sent = 1;
      while (sent > 0 && !this.#context.signal.aborted) {
        sent = await relay(session, null, this.#options);
        this.#done.published += sent;
      }
    } finally {
      await session.close();
    }
  }

  /** Outcomes that this sweep has recorded are told as any others are. */
  async #records(sql: string, values: readonly unknown[]): Promise<RunRecord[]> {
    const records = (await this.#write<RunRecord[]>(sql, values)).map(toRecord);
    for (const run of records) logOutcome(run, this.#options.logger);
    return records;
  }

  /** Looks, in the lock's own transaction, which stays free of writes until the end. */
  async #look<T>(sql: string, values: readonly unknown[]): Promise<T> {
    const { rows } = await this.#context.tx.query<{ answer: T }>(sql, values);
    return rows[0]?.answer as T;
  }

  /** Writes, in a transaction of its own, as long as no other sweep has the lock. */
  async #write<T>(sql: string, values: readonly unknown[]): Promise<T> {
    return this.#context.fenced(async (tx) => {
      const { rows } = await tx.query<{ answer: T }>(sql, values);
      return rows[0]?.answer as T;
    });
  }

  get #retainedSince(): string {
    return new Date(this.#now.getTime() - this.#options.retentionMs).toISOString();
  }

  /** A virtual time where there is one; otherwise the server's clock counts. */
  get #at(): string | null {
    return this.#options.clock ? this.#now.toISOString() : null;
  }

  get #logOnly(): boolean {
    return this.#options.sinks.length === 0;
  }
}

/**
 * A rule may be made a little after the sweep first knows of it, and first fires a whole interval later: the point of
 * its grid in between is none of its slots.
 */
function owesFrom({ knownSince }: Known, { schedule }: JobSchedule): Date {
  const earliest = schedule.kind === 'rate' ? schedule.everyMs / 2 : 0;
  return new Date(new Date(knownSince).getTime() + earliest);
}

function isOfCron(job: Job, at: Date): boolean {
  return job.schedules.some(
    ({ schedule, timeZone }) => schedule.kind === 'cron' && matches(schedule, at, timeZone),
  );
}

function laterOf(one: Date, other: Date | null): Date {
  return other !== null && other > one ? other : one;
}

function earlierOf(one: Date, other: Date | null): Date {
  return other !== null && other < one ? other : one;
}
