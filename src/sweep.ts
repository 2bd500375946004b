import { Accounts } from './accounts.ts';
import { defineJob, type Job, type Registry, type WorkContext } from './job.ts';
import { enterTimeLimitMs } from './lock.ts';
import { patienceMs, requestFor } from './owed.ts';
import { callSql } from './postgres/call.ts';
import { answerOf, toRecord } from './postgres/record.ts';
import type { Session } from './postgres/session.ts';
import { logOutcome, relay, type PublishOptions } from './publish.ts';
import { unnamedDeployment, type RunRecord } from './run.ts';
import type { RunRequest } from './trigger.ts';

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
  /** A slot whose run went wrong, or that was asked for, is delivered again once nothing came for so long, ms; default 10 min. */
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
  /** Of the missed, those that are to run late: each is owed from then on. */
  owed: number;
  /** Owed slots that this pass asked for, one a job: the others follow each other. */
  caughtUp: number;
  redelivered: number;
  published: number;
  pruned: number;
}

export const sweepName = 'sweep';

/** So many rows a statement. */
const batch = 500;

/** The longest that one look may take, ms. */
const lookMs = 30_000;

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

class Sweep {
  readonly #options: SweepOptions;
  readonly #context: WorkContext;
  readonly #now: Date;
  readonly #done: Swept = {
    settled: 0,
    missed: 0,
    paused: 0,
    owed: 0,
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
    await this.#attempt(() => this.#deliverOwed());
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
    const { registry, missedAfterMs = 300_000 } = this.#options;
    const accounts = new Accounts(
      {
        ...{ registry, missedAfterMs, deployment: this.#deployment, now: this.#now, at: this.#at },
        retainedSince: new Date(this.#retainedSince),
      },
      {
        look: async (query, values) => this.#look(query, values),
        write: async (call, values) => this.#write(call, values),
        records: async (call, values) => this.#records(call, values),
      },
    );
    for (const [job, known] of await accounts.open())
      await this.#attempt(async () => this.#count(await accounts.settle(job, known)));
  }

  #count(records: readonly RunRecord[]): void {
    this.#done.missed += records.filter(({ status }) => status === 'missed').length;
    this.#done.paused += records.filter(({ status }) => status === 'skipped').length;
    this.#done.owed += records.filter(({ final }) => final === false).length;
  }

  /** Of each job that owes slots the first; the run of one asks for the next. What a job that is gone owed, nobody runs. */
  async #deliverOwed(): Promise<void> {
    const owing = await this.#look<string[]>(
      (ours) => `SELECT coalesce(jsonb_agg(DISTINCT job ORDER BY job), '[]') FROM cronce.run
       WHERE deployment = ${ours} AND final = false AND NOT paid`,
      [this.#deployment],
    );
    for (const name of owing) {
      const job = this.#options.registry.get(name);
      if (job) await this.#attempt(() => this.#deliverNext(job));
    }
  }

  /** Of a disabled job only what was run by hand: its schedules are not to run. */
  async #deliverNext({ name, enabled }: Job): Promise<void> {
    this.#context.check();
    const of = [
      this.#deployment,
      name,
      this.#options.patienceMs ?? patienceMs,
      this.#at,
      this.#retainedSince,
      !enabled,
    ];
    const debt = await this.#write<RunRecord | null>('cronce.next_owed($1, $2, $3, $4, $5, $6)', of);
    if (!debt) return;
    try {
      await this.#options.deliver(requestFor(toRecord(debt), 1));
    } catch (error) {
      await this.#write('cronce.not_asked($1)', [debt.id]);
      throw error;
    }
    this.#done[debt.status === 'missed' ? 'caughtUp' : 'redelivered'] += 1;
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
