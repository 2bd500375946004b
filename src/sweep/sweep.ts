import { setTimeout as sleep } from 'node:timers/promises';
import { Accounts } from './accounts.ts';
import { declareJob, type Job, type Registry, type Transaction, type WorkContext } from '../job.ts';
import { gapMs as startGapMs } from '../path/limits.ts';
import { Observers } from '../observe/observers.ts';
import { askFor, patienceMs } from '../path/owed.ts';
import { callSql } from '../postgres/call.ts';
import { answerOf, toRecord } from '../postgres/record.ts';
import type { Session } from '../postgres/session.ts';
import { relay, type PublishOptions } from '../path/publish.ts';
import { unnamedDeployment, type RunRecord } from '../run.ts';
import type { RunRequest } from '../path/trigger.ts';

/**
 * The periodic pass that settles what dead invocations left behind, and accounts for every due slot. Itself a job under
 * the coordinator. Each step commits by itself, fenced, and does nothing twice: one that is cut short goes on next time.
 */
export interface SweepOptions extends PublishOptions {
  readonly registry: Registry;
  /** Hands a run to its job's function. */
  readonly deliver: (request: RunRequest) => Promise<void>;
  readonly openSession: () => Promise<Session>;
  /** Runs that ended longer ago are deleted, ms; claims are told the same, since a late duplicate is known by its slot's record. */
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

/** So long a transaction of pruning goes on before it commits, ms: what it deletes is in nobody's way. */
const pruneMs = 1_000;

/**
 * The share of the pass by whose end each step has had its turn. What one leaves over is the next one's; one that needs
 * more goes on in the next pass. Publishing comes before pruning, and pruning, which can wait, has the least for sure.
 */
const turns = { settle: 0.15, account: 0.4, deliver: 0.6, publish: 0.8, prune: 0.95 } as const;

/** Which the clocks of the sweep and of the server may be apart, ms: no record goes before its slot is too late for a claim. */
const skewMs = 60_000;

/** The longest that one look may take, ms. */
const lookMs = 30_000;

export function sweepJob(options: SweepOptions): Job {
  return declareJob({
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

/** As `cronce.prune` answers. */
interface Pruned {
  readonly pruned: number;
  /** Where the next batch begins; null where nothing is left. */
  readonly until: string | null;
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
  readonly #passMs: number;
  #reader: Session | null = null;
  /** What is to be left of the pass for the steps that follow, ms. */
  #reservedMs = 0;
  #turn = new AbortController();

  constructor(options: SweepOptions, context: WorkContext) {
    this.#options = { ...options, deliver: async (request) => this.#inTurn(options.deliver(request)) };
    this.#context = context;
    this.#passMs = context.timeLeftMs();
    this.#deployment = options.deployment ?? unnamedDeployment;
    this.#now = options.clock?.() ?? new Date();
  }

  /** One step that fails, or takes its time, keeps no other from its turn; the run fails at the end, and says what did. */
  async all(): Promise<Swept> {
    await this.#step('settle', () => this.#settle());
    await this.#step('account', () => this.#accountAll());
    await this.#step('deliver', () => this.#deliverOwed());
    await this.#step('publish', () => this.#relay());
    await this.#step('prune', () => this.#prune());
    await this.#reader?.close();
    if (this.#failures.length > 0)
      throw new AggregateError(this.#failures, `the sweep could not do all: ${JSON.stringify(this.#done)}`);
    return this.#done;
  }

  async #step(name: keyof typeof turns, step: () => Promise<void>): Promise<void> {
    this.#reservedMs = this.#passMs * (1 - turns[name]);
    this.#turn = new AbortController();
    const timer = setTimeout(() => {
      this.#turn.abort(
        new Error(`the sweep's step ${name} has had its share of the pass; it goes on in the next`),
      );
    }, this.#leftMs);
    await this.#attempt(step);
    clearTimeout(timer);
    if (this.#turn.signal.aborted) this.#options.logger.warn(String(this.#turn.signal.reason));
  }

  /** Until the step's turn is over, ms. */
  get #leftMs(): number {
    return Math.max(0, this.#context.timeLeftMs() - this.#reservedMs);
  }

  get #isOver(): boolean {
    return this.#leftMs === 0 || this.#context.signal.aborted;
  }

  /** Nothing new is begun once the step's turn is over. */
  async #attempt(step: () => Promise<void>): Promise<void> {
    this.#context.signal.throwIfAborted();
    if (this.#isOver) return;
    try {
      await step();
    } catch (error) {
      this.#failures.push(error);
    }
  }

  /** What does not end within the step's turn is left behind. */
  async #inTurn<T>(answer: Promise<T>): Promise<T> {
    answer.catch(() => undefined);
    const { signal } = this.#turn;
    const done = new AbortController();
    const over = new Promise<never>((_, reject) => {
      const leave = () => {
        reject(signal.reason as Error);
      };
      signal.addEventListener('abort', leave, { signal: done.signal });
    });
    return Promise.race([answer, over]).finally(() => {
      done.abort();
    });
  }

  /** Like pruning, looked for first: where nothing is to be done, no second session is opened to find that out. */
  async #settle(): Promise<void> {
    const gapMs = this.#options.gapMs ?? startGapMs;
    const isDue = await this.#look<boolean>(
      (gap, ours) => `SELECT EXISTS (SELECT FROM cronce.orphans(${gap}::integer, 1, ${ours})) OR EXISTS (
         SELECT FROM cronce.run r WHERE r.delay_until = 'infinity' AND r.deployment = ${ours})`,
      [String(gapMs), this.#deployment],
    );
    if (!isDue) return;
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
    await this.#accountByPages(accounts);
  }

  /** A page of each job, then one more of those that have more, for as long as it is this step's turn. */
  async #accountByPages(accounts: Accounts): Promise<void> {
    let open = await accounts.open();
    while (open.length > 0 && !this.#isOver) {
      const more = new Set<string>(); // none that has met an error: it would meet it again
      for (const [job, known] of open)
        await this.#attempt(async () => {
          const { records, whole } = await accounts.settle(job, known);
          this.#count(records);
          if (!whole) more.add(job);
        });
      open = more.size === 0 ? [] : (await accounts.open()).filter(([job]) => more.has(job));
    }
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
    const takeBack = async () => this.#write('cronce.not_asked($1)', [debt.id]);
    await askFor(toRecord(debt), 1, this.#options.deliver, takeBack);
    this.#done[debt.status === 'missed' ? 'caughtUp' : 'redelivered'] += 1;
  }

  /** Small statements, several a commit, and as long a rest after each as it took: claims come in between. */
  async #prune(): Promise<void> {
    const before = new Date(this.#now.getTime() - this.#options.retentionMs - skewMs).toISOString();
    let since = await this.#look<string | null>(
      (until, ours) => `SELECT finished_at FROM cronce.expired(${until}, 1, ${ours}, '-infinity')`,
      [before, this.#deployment],
    );
    while (since !== null && !this.#isOver) {
      const startedAt = performance.now();
      since = await this.#context.fenced(async (tx) => this.#pruneSome(tx, before, since));
      const tookMs = performance.now() - startedAt;
      if (since !== null) await this.#rest(tookMs);
    }
  }

  async #rest(ms: number): Promise<void> {
    const { signal } = this.#context;
    await sleep(Math.min(ms, this.#leftMs), undefined, { signal }).catch(() => undefined);
  }

  async #pruneSome(tx: Transaction, before: string, from: string | null): Promise<string | null> {
    const endsAt = performance.now() + Math.min(pruneMs, this.#leftMs);
    let since = from;
    do {
      const { pruned, until } = await this.#ask<Pruned>(tx, 'cronce.prune($1, $2, $3, $4)', [
        before,
        batch,
        this.#deployment,
        since,
      ]);
      this.#done.pruned += pruned;
      since = until;
    } while (since !== null && performance.now() < endsAt);
    return since;
  }

  async #relay(): Promise<void> {
    const session = await this.#readerSession();
    let taken = 1;
    while (taken > 0 && !this.#isOver) {
      const relayed = await relay(session, this.#told, this.#options);
      taken = relayed.taken;
      this.#done.published += relayed.done;
    }
    await session.send('ROLLBACK').catch(() => undefined); // of a batch that went wrong
  }

  /** Outcomes that this sweep has recorded are told as any others are. */
  async #records(call: string, values: readonly unknown[]): Promise<RunRecord[]> {
    const records = (await this.#write<RunRecord[]>(call, values)).map(toRecord);
    const { observers = new Observers(this.#options.logger) } = this.#options;
    for (const run of records) observers.tell('recorded', run);
    this.#told.push(...records.map(({ id }) => id));
    return records;
  }

  /** Looks, on a session beside the lock's own: there it would keep our tables from a migration until the sweep's end. */
  async #look<T>(query: (...literals: string[]) => string, values: readonly (string | null)[]): Promise<T> {
    const reader = await this.#readerSession();
    const sql = query(...values.map((value) => (value === null ? 'NULL' : reader.literal(value))));
    const limitMs = Math.max(1, Math.min(lookMs, this.#leftMs));
    const results = await reader.send(callSql(`(${sql})`, 'answer', limitMs), limitMs + 1_000);
    return answerOf<T>(results, 'answer');
  }

  async #readerSession(): Promise<Session> {
    if (this.#reader?.lost.aborted !== false) this.#reader = await this.#options.openSession();
    return this.#reader;
  }

  /**
   * Writes, in a transaction of its own, as long as no other sweep has the lock. The parsers of a job's transactions are
   * the process's, which any job's file may have changed: the answer is read as text by a parser of ours.
   */
  async #write<T>(call: string, values: readonly unknown[]): Promise<T> {
    return this.#context.fenced(async (tx) => this.#ask<T>(tx, call, values));
  }

  async #ask<T>(tx: Transaction, call: string, values: readonly unknown[]): Promise<T> {
    const text = `SELECT pg_catalog.to_jsonb(${call})::text AS answer`;
    const asked = tx.query<{ answer: string }>({ text, values: [...values], types: asText });
    const { rows } = await this.#inTurn(asked);
    return JSON.parse(rows[0]?.answer ?? 'null') as T;
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
