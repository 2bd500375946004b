import { setTimeout as delay } from 'node:timers/promises';
import { cancelRun } from '../../src/path/cancel.ts';
import { coordinate, type Coordinator } from '../../src/coordinate.ts';
import { defineJob, type Job, type WorkContext } from '../../src/job.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import type { TestDatabase } from '../support/database.ts';
import { startProxy, type Proxy } from '../support/proxy.ts';
import type { ClientPlan, Injury, JobPlan, Plan } from './draw.ts';

/** One run's work, as seen from inside. */
export interface Stay {
  readonly runId: string;
  readonly job: string;
  readonly slot: string;
  readonly lockDelayMs: number | undefined;
  /** When `check()` first and last passed, by `performance.now()`. */
  beganAt: number;
  vouchedUntil: number;
  /** Fenced transactions that were told to be committed. */
  fenced: number;
}

export interface Played {
  readonly plan: Plan;
  readonly job: string;
  readonly stays: readonly Stay[];
  /** What became of each delivery, as its client was told. */
  readonly told: readonly (RunRecord | Error)[];
  /** A delivery after everything: whatever happened, nobody is stranded. */
  readonly after: RunRecord;
}

/** Tables that the jobs write to. A trigger keeps how many fenced rows a run had when it left `running`. */
export const tables = `
  CREATE TABLE public.note (run_id uuid, how text);
  CREATE TABLE public.fenced_until (run_id uuid, notes integer);
  CREATE FUNCTION public.count_fenced() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
  BEGIN
    INSERT INTO public.fenced_until
      SELECT NEW.id, count(*) FROM public.note n WHERE n.run_id = NEW.id AND n.how = 'fenced';
    RETURN NEW;
  END $$;
  CREATE TRIGGER count_fenced AFTER UPDATE ON cronce.run FOR EACH ROW
    WHEN (OLD.status = 'running' AND NEW.status <> 'running') EXECUTE FUNCTION public.count_fenced();
  DO $$ BEGIN
    CREATE ROLE schedules_job;
  EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- roles are the server's: another database's jobs have it already
  END $$;
  GRANT ALL ON public.note, public.fenced_until TO PUBLIC`;

const slots = [new Date('2026-11-29T12:00:00Z'), new Date('2026-11-29T13:00:00Z')] as const;
const lastSlot = new Date('2026-11-30T12:00:00Z');
const timeLeftMs = 40_000;
/** Comes at once where a run was ended by force, by a way of its own. */
const newcomer = { startsAt: 0, worksMs: 1_000, fenced: 1, leaves: 'nothing', listens: true } as const;

/** Plays one plan to its end, everything healed. */
export async function play(plan: Plan, job: string, db: TestDatabase): Promise<Played> {
  const round = new Round(plan, job, db);
  return round.play();
}

class Round {
  readonly #plan: Plan;
  readonly #job: string;
  readonly #db: TestDatabase;
  readonly #stays: Stay[] = [];
  #proxies: Proxy[] = [];

  constructor(plan: Plan, job: string, db: TestDatabase) {
    [this.#plan, this.#job, this.#db] = [plan, job, db];
  }

  async play(): Promise<Played> {
    const { clients, injuries } = this.#plan;
    const targetPort = Number(new URL(this.#db.url).port);
    this.#proxies = await Promise.all(clients.map(() => startProxy({ targetPort })));
    try {
      const injured = Promise.all(injuries.map((injury) => this.#injure(injury)));
      const told = await Promise.all(clients.map((client, index) => this.#deliver(client, index)));
      await injured;
      await this.#settleAll();
      const after = await this.#deliverAfterwards();
      return { plan: this.#plan, job: this.#job, stays: this.#stays, told, after };
    } finally {
      await Promise.all(this.#proxies.map((proxy) => proxy.stop()));
    }
  }

  async #deliver(client: ClientPlan, index: number): Promise<RunRecord | Error> {
    await delay(client.startsAt);
    const job = this.#jobOf(client.job, async (context) => this.#work(context, client));
    const coordinator = this.#coordinatorBy(this.#proxies[index]?.url(this.#db.url) ?? this.#db.url);
    const delivery = deliveryFor(job, slots[client.slot] ?? lastSlot);
    return coordinate(delivery, timeLeftMs, coordinator).catch((error: unknown) => error as Error);
  }

  #coordinatorBy(url: string): Coordinator {
    return coordinatorOn(url, { target: { ...targetOf(url), connectTimeoutMs: 2_000 } });
  }

  #jobOf(index: number, work: Job['work']): Job {
    const options = this.#plan.jobs[index] as JobPlan;
    const lock = this.#plan.jobs.length > 1 ? { lock: `${this.#job}-lock` } : {};
    return defineJob({ name: `${this.#job}-${index}`, timeoutMs: 8_000, ...options, ...lock, work });
  }

  /** Writes, goes on for its time, and keeps asking whether it still may. */
  async #work(context: WorkContext, plan: ClientPlan): Promise<unknown> {
    const { runId, job, slot, tx, check } = context;
    const { lockDelayMs } = this.#plan.jobs[plan.job] as JobPlan;
    const stay: Stay = { runId, job, slot, lockDelayMs, beganAt: Infinity, vouchedUntil: 0, fenced: 0 };
    const vouch = () => {
      check();
      stay.vouchedUntil = performance.now();
      stay.beganAt = Math.min(stay.beganAt, stay.vouchedUntil);
    };
    vouch();
    this.#stays.push(stay);
    const until = performance.now() + plan.worksMs;
    for (const statement of left[plan.leaves]) await tx.query(statement);
    await tx.query(`INSERT INTO public.note VALUES ($1, 'tx')`, [runId]);
    for (let commits = 0; performance.now() < until;) {
      await delay(10);
      if (!passes(vouch) && plan.listens) throw context.signal.reason;
      const share = 1 - (until - performance.now()) / plan.worksMs;
      if (commits < plan.fenced && share > commits / plan.fenced) {
        commits += 1;
        await this.#commitBeside(context, stay);
      }
    }
    return 'done';
  }

  /** A refusal is what the run's end looks like from here; the loop hears of that by itself. */
  async #commitBeside({ fenced, runId }: WorkContext, stay: Stay): Promise<void> {
    try {
      await fenced((tx) => tx.query(`INSERT INTO public.note VALUES ($1, 'fenced')`, [runId]));
      stay.fenced += 1;
    } catch {
      return;
    }
  }

  async #injure({ at, kind, whom, forMs }: Injury): Promise<void> {
    await delay(at);
    const proxy = this.#proxies[whom] as Proxy;
    switch (kind) {
      case 'kill': {
        proxy.cut();
        return;
      }
      case 'partition':
        proxy.partition();
        await delay(forMs);
        return proxy.heal();
      case 'stall':
        proxy.stall();
        await delay(forMs);
        {
          proxy.resume();
          return;
        }
      case 'banish':
        return this.#banish(whom, forMs);
      case 'cancel':
        return this.#cancel(whom);
      case 'terminate':
        return this.#terminate(whom);
      case 'sweep':
        return this.#sweep();
    }
  }

  /** Whoever runs is cut off, new connections are not: a successor can come while the one that was ended knows nothing. */
  async #banish(whom: number, forMs: number): Promise<void> {
    for (const proxy of this.#proxies) proxy.partition({ newConnections: 'accept' });
    await this.#cancel(whom);
    const successor: ClientPlan = { ...newcomer, job: whom % this.#plan.jobs.length, slot: whom % 2 };
    await Promise.all([this.#deliver(successor, -1), delay(forMs)]);
    await Promise.all(this.#proxies.map((proxy) => proxy.heal()));
  }

  async #running(whom: number): Promise<Record<string, unknown> | undefined> {
    const sql = `SELECT id, backend_pid AS pid FROM cronce.run WHERE status = 'running' AND job LIKE $1 ORDER BY id`;
    const rows = await this.#db.query(sql, [`${this.#job}-%`]);
    return rows[whom % Math.max(1, rows.length)];
  }

  async #cancel(whom: number): Promise<void> {
    const run = await this.#running(whom);
    if (!run) return;
    const session = await Session.open(targetOf(this.#db.url));
    await cancelRun(session, String(run['id']), { by: 'the schedule', graceMs: 0 }).finally(() =>
      session.close(),
    );
  }

  async #terminate(whom: number): Promise<void> {
    const run = await this.#running(whom);
    if (run) await this.#db.query('SELECT pg_terminate_backend($1)', [run['pid']]);
  }

  async #sweep(gapMs = 7_000): Promise<void> {
    await this.#db.query('SELECT cronce.settle_orphans($1, 100, NULL)', [gapMs]);
  }

  /** The leases end what nobody ends by hand; then a sweep finds it. */
  async #settleAll(): Promise<void> {
    const until = performance.now() + 15_000;
    while ((await this.#running(0)) && performance.now() < until) {
      await this.#sweep();
      await delay(200);
    }
  }

  async #deliverAfterwards(): Promise<RunRecord> {
    const until = performance.now() + 15_000;
    const coordinator = this.#coordinatorBy(this.#db.url);
    const job = this.#jobOf(0, async ({ tx, runId }) => {
      await tx.query(`INSERT INTO public.note VALUES ($1, 'tx')`, [runId]);
    });
    for (;;) {
      const run = await coordinate(deliveryFor(job, lastSlot), timeLeftMs, coordinator);
      if (run.status === 'succeeded' || performance.now() > until) return run;
      await delay(100);
    }
  }
}

const left = {
  nothing: [],
  'a role': ['SET LOCAL ROLE schedules_job'],
  limits: [
    `SET LOCAL statement_timeout = '1s'`,
    `SET LOCAL lock_timeout = '100ms'`,
    `SET LOCAL search_path = pg_temp`,
    `SET LOCAL DateStyle = 'German'`,
  ],
} as const;

function passes(check: () => void): boolean {
  try {
    check();
    return true;
  } catch {
    return false;
  }
}
