/**
 * A process of its own that takes deliveries through the real path, with work that does what it is told to.
 * Started by crew.ts; its parent kills, freezes and cuts it off.
 */
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { coordinate } from '../../src/coordinate.ts';
import type { Stop } from '../../src/path/ending.ts';
import { defineJob, type Job, type WorkContext } from '../../src/job.ts';
import type { Logger, RunRecord } from '../../src/run.ts';
import { slotName } from '../../src/path/trigger.ts';
import { hostileFrom } from '../support/hostile.ts';
import { randomFrom } from '../support/random.ts';
import { Lag } from './lag.ts';
import type { Order, Step, ThrownError, Told, Vouched } from './orders.ts';

/** More than any work here takes; only `timeoutMs` of an order ends work. */
const timeLeftMs = 60_000;

/** Tells of the outcomes that it is told. */
function loggerOf(order: number): Logger {
  const log = (_: string, { run }: Record<string, unknown> = {}) => {
    const { id, status } = (run ?? {}) as Partial<RunRecord>;
    if (id !== undefined && status !== undefined) tell(order, { kind: 'logged', runId: id, status });
  };
  return { debug: log, info: log, warn: log, error: log };
}

function tell(order: number, told: Told, at = Date.now()): void {
  if (process.connected) process.send?.({ order, at, ...told });
}

function thrown(error: unknown): ThrownError {
  if (error instanceof Error) return { name: error.name, message: error.message, isError: true };
  const name = Object.prototype.toString.call(error);
  return { name, message: String(error), isError: false };
}

async function carryOut(order: Order): Promise<void> {
  const lag = new Lag();
  try {
    const scheduledFor = new Date(order.slot);
    const run = await coordinate(
      {
        job: jobOf(order, lag),
        slot: slotName(scheduledFor),
        scheduledFor,
        slotGuessed: false,
        scheduledForGuessed: false,
        offSchedule: false,
        trigger: 'rule',
        byHand: false,
        deliveryId: null,
        requestedBy: null,
        params: null,
      },
      timeLeftMs,
      {
        target: order.target,
        leaseMs: order.leaseMs,
        sinks: [],
        publishTimeoutMs: 1_000,
        logger: loggerOf(order.id),
      },
    );
    tell(order.id, { kind: 'told', run });
  } catch (error) {
    tell(order.id, { kind: 'threw', error: thrown(error) });
  } finally {
    lag.end();
  }
}

function jobOf(order: Order, lag: Lag): Job {
  return defineJob({
    name: order.job,
    lock: order.lock,
    timeoutMs: order.timeoutMs,
    ...(order.waitMs > 0 ? { overlap: 'wait', waitMs: order.waitMs } : {}),
    ...(order.replaceMs === undefined ? {} : { overlap: 'replace', waitMs: order.replaceMs }),
    work: async (context) => new Work(order, context, lag).perform(),
  });
}

class Work {
  readonly #order: Order;
  readonly #context: WorkContext;
  readonly #lag: Lag;
  #rows = 0;
  #counted = 0;
  #vouchedUntil = 0;

  constructor(order: Order, context: WorkContext, lag: Lag) {
    [this.#order, this.#context, this.#lag] = [order, context, lag];
  }

  /** Answers what must be there if the run succeeds. */
  async perform(): Promise<unknown> {
    const { runId, fence, signal } = this.#context;
    // Made before it is needed: a thawed process must find nothing to wait for between its `check()` and the act.
    await outsideWorld().catch(() => undefined);
    this.#tell({ kind: 'begun', runId, fence: fence.toString(), lock: this.#order.lock });
    signal.addEventListener('abort', () => {
      const { reason } = signal.reason as Stop;
      this.#tell({ kind: 'stopped', reason, lagMs: this.#lag.longestMs, vouched: this.#vouched() });
    });
    try {
      for (const step of this.#order.work) {
        this.#tell({ kind: 'step', step: step.do });
        await this.#take(step);
        if (step.do === 'return odd') return odd(step.which);
      }
      return { rows: this.#rows, counted: this.#counted };
    } finally {
      this.#tell({ kind: 'left', vouched: this.#vouched() });
    }
  }

  async #take(step: Step): Promise<void> {
    switch (step.do) {
      case 'write':
        return this.#rounds(step, () => this.#write());
      case 'count':
        return this.#count(step.pauseMs);
      case 'statement':
        return this.#occupy(step.ms, step.swallow);
      case 'limit statements':
        await this.#context.tx.query(`SET LOCAL statement_timeout = ${step.ms}`);
        return;
      case 'idle':
        return this.#idle();
      case 'effects':
        return this.#rounds(step, () => this.#attempt('effect', () => this.#effect()));
      case 'everything':
        return this.#rounds(step, () => this.#everything());
      case 'fenced':
        return this.#rounds(step, () =>
          this.#attempt('fenced', () => this.#fenced(() => delay(step.openMs))),
        );
      case 'block':
        return this.#block(step);
      case 'vouch':
        return this.#vouch(step.ms);
      case 'sql':
        await this.#context.tx.query(step.text);
        return;
      case 'forget':
        void this.#context.tx.query(step.text);
        return;
      case 'return odd':
        return;
      case 'throw odd':
        throw odd(step.which);
      case 'throw':
        throw new Error('told to throw');
    }
  }

  async #rounds(step: { rounds: number; everyMs: number }, round: () => Promise<void>): Promise<void> {
    for (let n = 0; n < step.rounds; n++) {
      await round();
      await delay(step.everyMs);
    }
  }

  async #everything(): Promise<void> {
    await this.#attempt('tx', () => this.#write());
    await this.#attempt('effect', () => this.#effect());
    await this.#attempt('fenced', () => this.#fenced());
  }

  async #attempt(what: string, act: () => Promise<void>): Promise<void> {
    await act().catch((error: unknown) => this.#tell({ kind: 'refused', what, error: thrown(error) }));
  }

  async #write(): Promise<void> {
    const { tx, runId } = this.#context;
    await tx.query('INSERT INTO faults.written (run_id, lock) VALUES ($1, $2)', [runId, this.#order.lock]);
    this.#rows += 1;
  }

  /** Two at a time would both read the same number. */
  async #count(pauseMs: number): Promise<void> {
    const { tx } = this.#context;
    const { lock } = this.#order;
    const { rows } = await tx.query<{ n: number }>('SELECT n FROM faults.counter WHERE lock = $1', [lock]);
    await delay(pauseMs);
    await tx.query('UPDATE faults.counter SET n = $2 WHERE lock = $1', [lock, (rows[0]?.n ?? 0) + 1]);
    this.#counted += 1;
  }

  async #occupy(ms: number, swallow = false): Promise<void> {
    const statement = this.#context.tx.query('SELECT pg_sleep($1)', [ms / 1_000]);
    await (swallow ? statement.catch(() => undefined) : statement);
  }

  async #idle(): Promise<void> {
    const { signal } = this.#context;
    if (signal.aborted) return;
    await new Promise<void>((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
  }

  /** Nothing may come between `check()` and the sending: a process frozen there acts on a thaw, whatever the lock. */
  async #effect(): Promise<void> {
    const { check, runId, fence } = this.#context;
    const outside = await outsideWorld();
    const vouchedAt = Date.now();
    check();
    this.#vouchedUntil = vouchedAt;
    const done = outside.query(
      `INSERT INTO faults.effect (run_id, lock, fence, vouched_at) VALUES ($1, $2, $3, to_timestamp($4 / 1000.0))`,
      [runId, this.#order.lock, fence.toString(), vouchedAt],
    );
    // Of a server that is being restarted, what was not answered was not done, or not kept.
    await done.catch(() => undefined);
  }

  async #fenced(inside: () => Promise<void> | void = () => undefined): Promise<void> {
    const { fenced, runId, fence } = this.#context;
    await fenced(async (tx) => {
      const values = [runId, this.#order.lock, fence.toString()];
      await tx.query('INSERT INTO faults.fenced (run_id, lock, fence) VALUES ($1, $2, $3)', values);
      await inside();
    });
  }

  async #block(step: { ms: number; in?: 'statement' | 'fenced' }): Promise<void> {
    switch (step.in) {
      case undefined:
        block(step.ms);
        return;
      case 'statement': {
        const statement = this.#occupy(50);
        await delay(10);
        block(step.ms);
        return statement;
      }
      case 'fenced':
        return this.#attempt('fenced', () => this.#fenced(() => block(step.ms)));
    }
  }

  /** To its end, or to that of the lock: the time is taken before each look, so that it is never too late. */
  async #vouch(ms: number): Promise<void> {
    const until = Date.now() + ms;
    try {
      for (let at = Date.now(); at < until; at = Date.now()) {
        this.#context.check();
        this.#vouchedUntil = at;
        await delay(5);
      }
    } catch (error) {
      this.#tell({ kind: 'refused', what: 'vouch', error: thrown(error) });
    }
  }

  #vouched(): Vouched {
    const { runId, fence } = this.#context;
    return { runId, fence: fence.toString(), lock: this.#order.lock, until: this.#vouchedUntil };
  }

  #tell(told: Told): void {
    tell(this.#order.id, told);
  }
}

function odd(which: number): unknown {
  return hostileFrom(randomFrom(which));
}

function block(ms: number): void {
  const until = Date.now() + ms;
  while (Date.now() < until);
}

let outside: Promise<pg.Client> | undefined;

/** A session that no lock protects and no fault touches: what the work does by it stays done. */
async function outsideWorld(): Promise<pg.Client> {
  const url = process.env['FAULTS_OUTSIDE_URL'];
  outside ??= connect(url ?? '').catch((error: unknown) => {
    outside = undefined;
    throw error;
  });
  return outside;
}

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url, application_name: 'faults: outside', ssl: false });
  // A restart of the server ends it; the next effect makes another.
  client.on('error', () => (outside = undefined));
  await client.connect();
  return client;
}

process.on('uncaughtException', (error) => tell(0, { kind: 'stray', error: thrown(error) }));
process.on('unhandledRejection', (error) => tell(0, { kind: 'stray', error: thrown(error) }));
process.on('disconnect', () => process.exit());
process.on('message', (order: Order) => void carryOut(order));
tell(0, { kind: 'ready' });
