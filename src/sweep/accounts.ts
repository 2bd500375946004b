import { v7 as uuidV7 } from 'uuid';
import { isOf, isOfCron, type KnownSchedule } from './due.ts';
import { earlierOf, laterOf } from '../calendar/instant.ts';
import type { Job, JobSchedule, Registry } from '../job.ts';
import { occurrencesBetween } from '../calendar/occurrences.ts';
import type { RunRecord } from '../run.ts';
import { parseSchedule } from '../calendar/expression.ts';
import { slotName } from '../path/trigger.ts';

/**
 * This module's secret: which slots fell due and were delivered by nobody. A job's schedules are accounted for together,
 * in the order of time: what its policy wants of an outage (`cronce.grant_catch_up`) is a matter of the job, and not of
 * the schedule, the page or the pass in which a slot is found.
 */
export interface AccountOptions {
  readonly registry: Registry;
  readonly deployment: string;
  readonly now: Date;
  /** The same, where it is a virtual clock's; null where the server's clock counts. */
  readonly at: string | null;
  /** A due slot is missed once nothing came for so long, ms. */
  readonly missedAfterMs: number;
  /** Slots of before are not caught up. */
  readonly retainedSince: Date;
}

/** How the sweep looks, writes, and records what it is to tell. */
export interface Ledger {
  look<T>(query: (...literals: string[]) => string, values: readonly (string | null)[]): Promise<T>;
  write<T>(call: string, values: readonly unknown[]): Promise<T>;
  records(call: string, values: readonly unknown[]): Promise<RunRecord[]>;
}

/** So many due times of a schedule a page, which is a transaction: seconds on a slow server. */
const dueAtMost = 1_000;

/** How much of what is in order each pass may look at again, rather than write down that it was. */
const recheckedMs = 6 * 3_600_000;

/** A schedule as it is known, deployed or not. */
interface Known extends KnownSchedule {
  readonly job: string;
  readonly knownSince: string;
  readonly accountedUntil: string;
  /** When a sweep last saw it deployed. */
  readonly deployedAt: string;
  /** It is deployed no more: its slots until then are still accounted for, and then it is forgotten. */
  readonly gone: boolean;
}

/** A known schedule with what fell due since it was last accounted for, up to some time. */
interface Account {
  readonly known: Known;
  readonly schedule: JobSchedule;
  /** The name of a slot is known: a rate that was never delivered has no phase to name one by. */
  readonly certain: boolean;
  readonly due: readonly Date[];
  readonly until: Date;
  /** Not cut short: no later one is due. */
  readonly whole: boolean;
}

interface Slot {
  readonly at: Date;
  readonly certain: boolean;
}

/** What a page is about. */
interface Found {
  readonly accounts: readonly Account[];
  readonly missed: readonly Slot[];
  readonly whole: boolean;
}

interface Page {
  readonly records: readonly RunRecord[];
  /** It was the last: nothing more of the job is to be accounted for. */
  readonly whole: boolean;
}

export class Accounts {
  readonly #options: AccountOptions;
  readonly #ledger: Ledger;

  constructor(options: AccountOptions, ledger: Ledger) {
    this.#options = options;
    this.#ledger = ledger;
  }

  /** What is to be accounted for, job by job. */
  async open(): Promise<(readonly [job: string, known: readonly Known[]])[]> {
    const given = this.#deployed().map(({ job, schedule }) => ({
      job: job.name,
      expression: schedule.schedule.expression,
      timeZone: schedule.timeZone,
      start: schedule.start,
      end: schedule.end,
    }));
    const { now, deployment } = this.#options;
    const known = await this.#ledger.write<Known[]>('cronce.know_schedules($1, $2, $3)', [
      JSON.stringify(given),
      now.toISOString(),
      deployment,
    ]);
    const names = [...new Set(known.map(({ job }) => job))];
    return names.map((name) => [name, known.filter(({ job }) => job === name)]);
  }

  /** One page of a job: missed slots are recorded, and owed where its policy wants them, in one transaction. */
  async settle(name: string, known: readonly Known[]): Promise<Page> {
    const job = this.#options.registry.get(name);
    const accounts = cutAtOnce(await this.#accountsOf(job, known));
    const missed = await this.#missed(name, job, accounts);
    const whole = accounts.every((account) => account.whole);
    const isLong = accounts.some(
      ({ known: { accountedUntil }, until }) => until.getTime() - Date.parse(accountedUntil) > recheckedMs,
    );
    const records =
      missed.length > 0 || isLong || !whole ? await this.#record(name, job, { accounts, missed, whole }) : [];
    for (const account of accounts)
      if (account.known.gone && account.whole && this.#isOver(account.known))
        await this.#forget(account.known);
    return { records, whole };
  }

  #deployed(): { job: Job; schedule: JobSchedule }[] {
    const jobs = [...this.#options.registry.values()].filter(({ enabled }) => enabled);
    return jobs.flatMap((job) =>
      job.schedules.filter(({ enabled }) => enabled).map((schedule) => ({ job, schedule })),
    );
  }

  async #accountsOf(job: Job | undefined, known: readonly Known[]): Promise<Account[]> {
    const schedules = known.map((one) => ({ one, schedule: this.#scheduleOf(one) }));
    const hasRate = schedules.some(({ schedule }) => schedule.schedule.kind === 'rate');
    const times = hasRate ? await this.#ratesLastTimes(job, known) : [];
    return schedules.map(({ one, schedule }) => {
      const isRate = schedule.schedule.kind === 'rate';
      const phase = isRate ? (times.find((at) => at >= new Date(one.knownSince)) ?? null) : null;
      const certain = !isRate || phase !== null;
      return { known: one, schedule, certain, ...this.#dueSlots(one, schedule, phase) };
    });
  }

  /** As it is deployed; one that is deployed no more by what is known of it. */
  #scheduleOf(known: Known): JobSchedule {
    const found = this.#deployed().find(
      ({ job, schedule }) => job.name === known.job && isOf(known, schedule),
    );
    if (found) return found.schedule;
    const { timeZone, start, end } = known;
    return {
      schedule: parseSchedule(known.expression),
      timeZone,
      via: 'rule',
      flexibleMinutes: null,
      start: start === null ? null : new Date(start),
      end: end === null ? null : new Date(end),
      enabled: true,
    };
  }

  /** The due times that are not accounted for yet and old enough; of a long outage the oldest, the rest on the next page. */
  #dueSlots(
    known: Known,
    schedule: JobSchedule,
    phase: Date | null,
  ): Pick<Account, 'due' | 'until' | 'whole'> {
    const graceMs = this.#graceMs(schedule.flexibleMinutes ?? 0);
    const after = laterOf(laterOf(new Date(known.accountedUntil), schedule.start), owesFrom(known, schedule));
    const latest = earlierOf(new Date(this.#options.now.getTime() - graceMs), schedule.end);
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

  #graceMs(flexibleMinutes: number): number {
    return this.#options.missedAfterMs + flexibleMinutes * 60_000;
  }

  /** Nothing that was due while it was deployed can still come in time. */
  #isOver({ deployedAt }: Known): boolean {
    return this.#options.now.getTime() - this.#graceMs(0) >= new Date(deployedAt).getTime();
  }

  async #forget({ job, expression, timeZone, start, end }: Known): Promise<void> {
    await this.#ledger.write('cronce.forget_schedule($1, $2, $3, $4, $5, $6)', [
      job,
      expression,
      timeZone,
      this.#options.deployment,
      start,
      end,
    ]);
  }

  /**
   * A rate's phase is set when its rule is made. Its last delivery shows it; one of before belongs to another rule. The
   * latest first.
   */
  async #ratesLastTimes(job: Job | undefined, known: readonly Known[]): Promise<Date[]> {
    const since = Math.min(...known.map(({ knownSince }) => Date.parse(knownSince)));
    const { deployment, now } = this.#options;
    const times = await this.#ledger.look<string[]>(
      (ours, of, from, until) => `SELECT coalesce(jsonb_agg(t.at ORDER BY t.at DESC), '[]') FROM (
         SELECT DISTINCT scheduled_for AS at FROM cronce.run
         WHERE deployment = ${ours} AND job = ${of} AND trigger IN ('rule', 'scheduler') AND NOT slot_guessed
           AND scheduled_for BETWEEN ${from} AND ${until}
         ORDER BY 1 DESC LIMIT 100) t`,
      [deployment, known[0]?.job ?? '', new Date(since).toISOString(), now.toISOString()],
    );
    return times.map((time) => new Date(time)).filter((at) => !isOfCron(job, at));
  }

  /** In the order of time, each once: two schedules may share an instant, and then they share its slot. */
  async #missed(name: string, job: Job | undefined, accounts: readonly Account[]): Promise<Slot[]> {
    const missed = new Map<number, Slot>();
    for (const account of accounts.filter(({ due }) => due.length > 0))
      for (const at of await this.#undelivered(name, job, account)) {
        const certain = account.certain || missed.get(at.getTime())?.certain === true;
        missed.set(at.getTime(), { at, certain });
      }
    return [...missed.values()].sort((one, other) => one.at.getTime() - other.at.getTime());
  }

  /** A rate's phase is known to the second only: any delivery within half its interval counts, but not a cron's. */
  async #undelivered(name: string, job: Job | undefined, { schedule, due }: Account): Promise<Date[]> {
    const { schedule: when } = schedule;
    const toleranceMs = when.kind === 'rate' ? Math.floor(when.everyMs / 2) : 0;
    const [first, last] = [due[0]?.getTime() ?? 0, due.at(-1)?.getTime() ?? 0];
    const times = await this.#ledger.look<string[]>(
      (of, since, until, ours) => `SELECT to_jsonb(cronce.delivered(${of}, ${since}, ${until}, ${ours}))`,
      [
        name,
        new Date(first - toleranceMs).toISOString(),
        new Date(last + toleranceMs).toISOString(),
        this.#options.deployment,
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

  async #record(
    name: string,
    job: Job | undefined,
    { accounts, missed, whole }: Found,
  ): Promise<RunRecord[]> {
    const { deployment, at: now } = this.#options;
    const slots = missed.map(({ at, certain }) => ({
      id: uuidV7(),
      slot: slotName(at),
      scheduledFor: at.toISOString(),
      certain,
    }));
    const schedules = accounts.map(({ known: { expression, timeZone, start, end }, until }) => ({
      ...{ expression, timeZone, start, end, until },
    }));
    const of = { deployment, job: name, lockName: name, now, whole, ...this.#policyOf(job) };
    return this.#ledger.records('cronce.account($1)', [JSON.stringify({ ...of, schedules, slots })]);
  }

  /** Nothing is caught up for a job that is gone, or disabled. */
  #policyOf(job: Job | undefined): object {
    if (job?.enabled !== true) return { catchUp: 'skip' };
    const { catchUp, catchUpLimit, startDeadlineMs } = job;
    const { now, retainedSince } = this.#options;
    const inTime = startDeadlineMs === null ? null : new Date(now.getTime() - startDeadlineMs);
    return { catchUp, catchUpLimit, earliest: laterOf(retainedSince, inTime) };
  }
}

/** A page ends for all of a job's schedules where it ends for the first: what comes later may belong in between. */
function cutAtOnce(accounts: readonly Account[]): Account[] {
  const cut = accounts.filter(({ whole }) => !whole).map(({ until }) => until.getTime());
  if (cut.length === 0) return [...accounts];
  const end = new Date(Math.min(...cut));
  return accounts.map((account) =>
    account.until <= end
      ? account
      : { ...account, due: account.due.filter((at) => at <= end), until: end, whole: false },
  );
}

/**
 * A rule may be made a little after the sweep first knows of it, and first fires a whole interval later: the point of
 * its grid in between is none of its slots.
 */
function owesFrom({ knownSince }: Known, { schedule }: JobSchedule): Date {
  const earliest = schedule.kind === 'rate' ? schedule.everyMs / 2 : 0;
  return new Date(new Date(knownSince).getTime() + earliest);
}
