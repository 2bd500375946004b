import { v7 as uuidV7 } from 'uuid';
import { defineJob, type Job, type JobSchedule, type Registry, type WorkContext } from './job.ts';
import { enterTimeLimitMs } from './lock.ts';
import { matches, occurrencesBetween } from './occurrences.ts';
import { callSql } from './postgres/call.ts';
import { answerOf, toRecord } from './postgres/record.ts';
import type { Session } from './postgres/session.ts';
import { logOutcome, relay, type PublishOptions } from './publish.ts';
import { unnamedDeployment, type RunRecord } from './run.ts';
import { parseSchedule } from './schedule.ts';
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

/** So many rows a statement. */
const batch = 500;

/** So many due times of a schedule a pass: three days of one that is due each minute. */
const dueAtMost = 5_000;

/** The longest that one look may take, ms. */
const lookMs = 30_000;

/** How much of what is in order each pass may look at again, rather than write down that it was. */
const recheckedMs = 6 * 3_600_000;

export function sweepJob(options: SweepOptions): Job {
  return defineJob({
    name: sweepName,
    description: 'Settles what dead invocations left behind, and accounts for every due slot.',
    schedule: 'rate(5 minutes)',
    timeoutMs: 240_000,
    retries: 0,
    lockDelayMs: 0, // what it writes is fenced, what it delivers twice its slot forgives
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
  /** When a sweep last saw it deployed. */
  readonly deployedAt: string;
  /** It is deployed no more: its slots until then are still accounted for, and then it is forgotten. */
  readonly gone: boolean;
}

/** A slot that must still run, and what it is about. */
type Owed = Pick<RunRecord, 'job' | 'slot' | 'scheduledFor'> &
  Partial<Pick<RunRecord, 'params' | 'requestedBy' | 'requestReason'>>;

interface DueSlots {
  readonly due: Date[];
  readonly until: Date;
  /** Not cut short: no later one is due. */
  readonly whole: boolean;
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
  /** Records of this pass, of which the log has its lines. */
  readonly #told: string[] = [];
  readonly #deployment: string;
  #reader: Session | null = null;

  constructor(options: SweepOptions, context: WorkContext) {
    this.#options = options;
    this.#context = context;
    this.#deployment = options.deployment ?? unnamedDeployment;
    this.#now = options.clock?.() ?? new Date();
  }

  /** One step that fails keeps no other from its turn; the run fails at the end, and says what did. */
  async all(): Promise<Swept> {
    await this.#attempt(() => this.#settle());
    await this.#attempt(() => this.#accountAll());
    await this.#attempt(() => this.#deliverAbandoned());
    await this.#attempt(() => this.#relay());
    await this.#attempt(() => this.#prune());
    await this.#reader?.close();
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
    const settled = await this.#records('cronce.settle_orphans($1, $2, $3, $4)', [
      gapMs,
      batch,
      this.#at,
      this.#deployment,
    ]);
    this.#done.settled = settled.length;
  }

  async #accountAll(): Promise<void> {
    const given = this.#deployed().map(({ job, schedule: { schedule, timeZone } }) => ({
      job: job.name,
      expression: schedule.expression,
      timeZone,
    }));
    const known = await this.#write<Known[]>('cronce.know_schedules($1, $2, $3)', [
      JSON.stringify(given),
      this.#now.toISOString(),
      this.#deployment,
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
    const schedule = this.#scheduleOf(known);
    const job = this.#options.registry.get(known.job);
    const phase = schedule.schedule.kind === 'rate' ? await this.#phaseOf(known, job) : null;
    const { due, until, whole } = this.#dueSlots(known, schedule, phase);
    const missed = due.length > 0 ? await this.#undelivered(known.job, job, schedule, due) : [];
    // A rate that was never delivered has no phase to name a slot by: a late first event would run it once more.
    const certain = schedule.schedule.kind === 'cron' || phase !== null;
    for (const at of job && certain ? await this.#toCatchUp(job, missed, whole) : [])
      await this.#deliver({ job: known.job, slot: slotName(at), scheduledFor: at.toISOString() }, 'caughtUp');
    const unchecked = until.getTime() - new Date(known.accountedUntil).getTime();
    if (missed.length > 0 || unchecked > recheckedMs) await this.#record(known, missed, until);
    if (known.gone && whole && this.#isAccounted(known)) await this.#forget(known);
  }

  /** As it is deployed; one that is deployed no more by what is known of it. */
  #scheduleOf(known: Known): JobSchedule {
    const found = this.#deployed().find(
      ({ job, schedule }) =>
        job.name === known.job &&
        schedule.schedule.expression === known.expression &&
        schedule.timeZone === known.timeZone,
    );
    if (found) return found.schedule;
    const schedule = parseSchedule(known.expression);
    const { timeZone } = known;
    return { schedule, timeZone, via: 'rule', flexibleMinutes: null, start: null, end: null, enabled: true };
  }

  /** Nothing that was due while it was deployed can still come in time. */
  #isAccounted({ deployedAt }: Known): boolean {
    return this.#now.getTime() - this.#graceMs(0) >= new Date(deployedAt).getTime();
  }

  #graceMs(flexibleMinutes: number): number {
    return (this.#options.missedAfterMs ?? 300_000) + flexibleMinutes * 60_000;
  }

  async #forget({ job, expression, timeZone }: Known): Promise<void> {
    await this.#write('cronce.forget_schedule($1, $2, $3, $4)', [
      job,
      expression,
      timeZone,
      this.#deployment,
    ]);
  }

  /** The due times that are not accounted for yet and old enough; of a long outage the oldest, the rest next time. */
  #dueSlots(known: Known, schedule: JobSchedule, phase: Date | null): DueSlots {
    const graceMs = this.#graceMs(schedule.flexibleMinutes ?? 0);
    const after = laterOf(laterOf(new Date(known.accountedUntil), schedule.start), owesFrom(known, schedule));
    const latest = earlierOf(new Date(this.#now.getTime() - graceMs), schedule.end);
    const until = known.gone ? earlierOf(latest, new Date(known.deployedAt)) : latest;
    if (until <= after) return { due: [], until: after, whole: true };
    const anchor = phase ?? new Date(known.knownSince);
    const due: Date[] = [];
    for (const at of occurrencesBetween(schedule.schedule, after, until, schedule.timeZone, anchor)) {
      due.push(at);
      if (due.length === dueAtMost) return { due, until: at, whole: false };
    }
    return { due, until, whole: true };
  }

  /** A rate's phase is set when its rule is made. Its last delivery shows it; one of before belongs to another rule. */
  async #phaseOf({ job: name, knownSince }: Known, job: Job | undefined): Promise<Date | null> {
    const times = await this.#look<string[]>(
      (ours, of, since, now) => `SELECT coalesce(jsonb_agg(t.at), '[]') FROM (
         SELECT DISTINCT scheduled_for AS at FROM cronce.run
         WHERE deployment = ${ours} AND job = ${of} AND trigger IN ('rule', 'scheduler') AND NOT slot_guessed
           AND scheduled_for BETWEEN ${since} AND ${now}
         ORDER BY 1 DESC LIMIT 100) t`,
      [this.#deployment, name, knownSince, this.#now.toISOString()],
    );
    const ofRate = times.map((time) => new Date(time)).filter((at) => !isOfCron(job, at));
    return ofRate.sort((one, other) => other.getTime() - one.getTime())[0] ?? null;
  }

  /** A rate's phase is known to the second only: any delivery within half its interval counts, but not a cron's. */
  async #undelivered(
    name: string,
    job: Job | undefined,
    { schedule }: JobSchedule,
    due: readonly Date[],
  ): Promise<Date[]> {
    const toleranceMs = schedule.kind === 'rate' ? Math.floor(schedule.everyMs / 2) : 0;
    const [first, last] = [due[0]?.getTime() ?? 0, due.at(-1)?.getTime() ?? 0];
    const times = await this.#look<string[]>(
      (of, since, until, ours) => `SELECT to_jsonb(cronce.delivered(${of}, ${since}, ${until}, ${ours}))`,
      [
        name,
        new Date(first - toleranceMs).toISOString(),
        new Date(last + toleranceMs).toISOString(),
        this.#deployment,
      ],
    );
    const delivered = times.map((time) => Date.parse(time));
    if (toleranceMs === 0) {
      const exactly = new Set(delivered);
      return due.filter((at) => !exactly.has(at.getTime()));
    }
    const ofRate = delivered.filter((at) => !isOfCron(job, new Date(at)));
    return due.filter((at) => !ofRate.some((one) => Math.abs(one - at.getTime()) <= toleranceMs));
  }

  /**
   * Of missed slots those that shall run late: none of a time when the job was paused, or is, or that would be too late.
   * The latest is known only once nothing later is due.
   */
  async #toCatchUp(job: Job, missed: readonly Date[], whole: boolean): Promise<readonly Date[]> {
    if (job.catchUp === 'skip' || missed.length === 0 || (job.catchUp === 'one' && !whole)) return [];
    const wanted = await this.#look<string[] | null>(
      (ours, name, times) => `SELECT jsonb_agg(d ORDER BY d) FROM unnest(${times}::timestamptz[]) d
       WHERE NOT EXISTS (SELECT FROM cronce.pause z WHERE z.deployment = ${ours} AND z.job = ${name}
                         AND (z.resumed_at IS NULL OR (d >= z.paused_at AND d < z.resumed_at)))`,
      [this.#deployment, job.name, `{${missed.map((at) => at.toISOString()).join(',')}}`],
    );
    const earliest = job.startDeadlineMs === null ? -Infinity : this.#now.getTime() - job.startDeadlineMs;
    const slots = (wanted ?? []).map((time) => new Date(time)).filter((at) => at.getTime() >= earliest);
    return job.catchUp === 'one' ? slots.slice(-1) : slots.slice(0, job.catchUpLimit);
  }

  async #record(known: Known, missed: readonly Date[], until: Date): Promise<void> {
    const slots = missed.map((at) => ({ id: uuidV7(), slot: slotName(at), scheduledFor: at.toISOString() }));
    const { job, expression, timeZone } = known;
    const of = { deployment: this.#deployment, job, expression, timeZone, lockName: job };
    const records = await this.#records('cronce.account($1)', [
      JSON.stringify({ ...of, until, now: this.#at, slots }),
    ]);
    this.#done.missed += records.filter(({ status }) => status === 'missed').length;
    this.#done.paused += records.filter(({ status }) => status === 'skipped').length;
  }

  async #deliverAbandoned(): Promise<void> {
    const { patienceMs = 600_000, registry } = this.#options;
    const abandoned = await this.#look<RunRecord[]>(
      (at, since, ours, jobs) =>
        `SELECT cronce.abandoned(${patienceMs}, ${batch}, ${at}, ${since}, ${ours}, ${jobs}::text[])`,
      [this.#at, this.#retainedSince, this.#deployment, `{${[...registry.keys()].join(',')}}`],
    );
    for (const run of abandoned) await this.#attempt(() => this.#deliver(run, 'redelivered'));
  }

  /** As it was delivered first: what a slot is about must be the same in each of its runs. */
  async #deliver(
    { job, slot, scheduledFor, params = null, requestedBy = null, requestReason: reason = null }: Owed,
    counter: 'caughtUp' | 'redelivered',
  ): Promise<void> {
    this.#context.check();
    const due = slot.startsWith('manual:') ? { scheduledFor } : {}; // any other slot is its time
    const asked = {
      ...(requestedBy === null ? {} : { requestedBy }),
      ...(reason === null ? {} : { reason }),
    };
    await this.#options.deliver({ cronce: { job, trigger: 'sweep', slot, ...due, ...asked, params } });
    this.#done[counter] += 1;
  }

  async #prune(): Promise<void> {
    const before = this.#retainedSince;
    let gone = batch;
    while (gone === batch && !this.#context.signal.aborted) {
      gone = await this.#write<number>('cronce.prune($1, $2, $3)', [before, batch, this.#deployment]);
      this.#done.pruned += gone;
    }
  }

  async #relay(): Promise<void> {
    const session = await this.#options.openSession();
    try {
      let sent = 1;
      while (sent > 0 && !this.#context.signal.aborted) {
        sent = await relay(session, this.#told, this.#options);
        this.#done.published += sent;
      }
    } finally {
      await session.close();
    }
  }

  /** Outcomes that this sweep has recorded are told as any others are. */
  async #records(call: string, values: readonly unknown[]): Promise<RunRecord[]> {
    const records = (await this.#write<RunRecord[]>(call, values)).map(toRecord);
    for (const run of records) logOutcome(run, this.#options.logger);
    this.#told.push(...records.map(({ id }) => id));
    return records;
  }

  /** Looks, on a session beside the lock's own: there it would keep our tables from a migration until the sweep's end. */
  async #look<T>(query: (...literals: string[]) => string, values: readonly (string | null)[]): Promise<T> {
    if (this.#reader?.lost.aborted !== false) this.#reader = await this.#options.openSession();
    const reader = this.#reader;
    const sql = query(...values.map((value) => (value === null ? 'NULL' : reader.literal(value))));
    const results = await reader.send(callSql(`(${sql})`, 'answer', lookMs), lookMs + 1_000);
    return answerOf<T>(results, 'answer');
  }

  /**
   * Writes, in a transaction of its own, as long as no other sweep has the lock. The parsers of a job's transactions are
   * the process's, which any job's file may have changed: the answer is read as text by a parser of ours.
   */
  async #write<T>(call: string, values: readonly unknown[]): Promise<T> {
    const text = `SELECT pg_catalog.to_jsonb(${call})::text AS answer`;
    return this.#context.fenced(async (tx) => {
      const { rows } = await tx.query<{ answer: string }>({ text, values: [...values], types: asText });
      return JSON.parse(rows[0]?.answer ?? 'null') as T;
    });
  }

  get #retainedSince(): string {
    return new Date(this.#now.getTime() - this.#options.retentionMs).toISOString();
  }

  /** A virtual time where there is one; otherwise the server's clock counts. */
  get #at(): string | null {
    return this.#options.clock ? this.#now.toISOString() : null;
  }
}

/** Also of a process that asks for binary results: a text is its bytes then. */
const asText = { getTypeParser: () => String };

/**
 * A rule may be made a little after the sweep first knows of it, and first fires a whole interval later: the point of
 * its grid in between is none of its slots.
 */
function owesFrom({ knownSince }: Known, { schedule }: JobSchedule): Date {
  const earliest = schedule.kind === 'rate' ? schedule.everyMs / 2 : 0;
  return new Date(new Date(knownSince).getTime() + earliest);
}

function isOfCron(job: Job | undefined, at: Date): boolean {
  return (job?.schedules ?? []).some(
    ({ schedule, timeZone }) => schedule.kind === 'cron' && matches(schedule, at, timeZone),
  );
}

function laterOf(one: Date, other: Date | null): Date {
  return other !== null && other > one ? other : one;
}

function earlierOf(one: Date, other: Date | null): Date {
  return other !== null && other < one ? other : one;
}
