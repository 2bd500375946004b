/** One trial of a row, and how many of them are played side by side. */
import { setTimeout as delay } from 'node:timers/promises';
import { lockKey } from '../../src/lock-name.ts';
import type { Status } from '../../src/run.ts';
import { randomFrom } from '../support/random.ts';
import { audit, overlaps } from './audit.ts';
import { within, type Delivery, type Ended, type EventOf, type Worker } from './crew.ts';
import { openField, type Field, type Ground } from './field.ts';
import { Lag } from './lag.ts';
import type { Order, Step } from './orders.ts';
import type { Road, Way } from './ways.ts';
import type { Freed } from './watch.ts';

/** The shortest that a lease may be. */
export const leaseMs = 2_000;
/** For what the server's timers and a busy machine may add to a lease. */
export const slackMs = 1_000;
const trialLimitMs = 90_000;
/** For a server that is up, and a machine that is not idle. */
const connectingMs = 10_000;

export interface RowResult {
  readonly row: string;
  /** How many were done. */
  readonly trials: number;
  /** Besides these, the trials in which the fault could not be done, each with why: they show nothing. */
  readonly undone: readonly string[];
  readonly violations: readonly string[];
  readonly times: Readonly<Record<string, readonly number[]>>;
  /** What else there is to say. */
  readonly note?: string;
  /** Why nothing was played at all. */
  readonly skipped?: string;
}

export interface RowPlan {
  readonly row: string;
  readonly trials: number;
  readonly way?: Way['name'];
  /** How many trials at a time. */
  readonly lanes: number;
}

/** The fault could not be done: the run was over before, say. */
class Undone extends Error {}

export async function playRow(
  ground: Ground,
  plan: RowPlan,
  body: (trial: Trial) => Promise<void>,
): Promise<RowResult> {
  const field = await openField(ground, plan.way);
  const played = await playAll(field, plan, body);
  const left = (await field.close()).map((leak) => `left behind: ${leak}`);
  const undone = played.flatMap((trial) => (trial.undone === undefined ? [] : [trial.undone]));
  return {
    row: plan.row,
    trials: played.length - undone.length,
    undone,
    violations: [...played.flatMap(({ violations }) => violations), ...field.crew.strays, ...left],
    times: merged(played.map(({ times }) => times)),
  };
}

/** In several lanes. A trial that could not be done is tried again, at most twice. */
async function playAll(
  field: Field,
  plan: RowPlan,
  body: (trial: Trial) => Promise<void>,
): Promise<readonly Trial[]> {
  const seed = () => field.ground.random() * 2 ** 32;
  const waiting = Array.from({ length: plan.trials }, (_, n) => ({ n, seed: seed(), again: 0 }));
  const played: Trial[] = [];
  const playLane = async (lane: number) => {
    for (let next = waiting.shift(); next; next = waiting.shift()) {
      const own = { ...next, lane };
      const trial = await field.ground.gate.through(() => play(new Trial(field, plan, own), body));
      played.push(trial);
      if (trial.undone !== undefined && next.again < 2)
        waiting.push({ ...next, seed: seed(), again: next.again + 1 });
      field.ground.progress(plan.row, played.length, plan.trials);
    }
  };
  await Promise.all(Array.from({ length: plan.lanes }, (_, lane) => playLane(lane)));
  return played;
}

async function play(trial: Trial, body: (trial: Trial) => Promise<void>): Promise<Trial> {
  try {
    await within(trialLimitMs, 'end of the trial', unlessUndone(trial, body));
    await trial.settle();
    await trial.audit();
  } catch (error) {
    trial.violate(error instanceof Error ? error.message : String(error));
  } finally {
    await trial.close();
  }
  return trial;
}

async function unlessUndone(trial: Trial, body: (trial: Trial) => Promise<void>): Promise<void> {
  try {
    await body(trial);
  } catch (error) {
    if (!(error instanceof Undone)) throw error;
    trial.undone = error.message;
  }
}

function merged(all: readonly Readonly<Record<string, readonly number[]>>[]): Record<string, number[]> {
  const sum: Record<string, number[]> = {};
  for (const times of all)
    for (const [name, values] of Object.entries(times)) (sum[name] ??= []).push(...values);
  return sum;
}

/** What an order may say besides what every one says. */
export type OrderOptions = Partial<Pick<Order, 'leaseMs' | 'timeoutMs' | 'waitMs' | 'replaceMs'>>;

interface TrialPlan {
  /** Which of the row's trials: decides what it tries. */
  readonly n: number;
  readonly seed: number;
  readonly again: number;
  readonly lane: number;
}

export class Trial {
  readonly number: number;
  readonly field: Field;
  readonly random: () => number;
  /** The job's, its lock's and its counter's. */
  readonly name: string;
  readonly violations: string[] = [];
  readonly times: Record<string, number[]> = {};
  undone: string | undefined;
  /** Runs that a lossy failover forgot. */
  readonly forgotten: string[] = [];
  readonly #lane: number;
  readonly #roads: Road[] = [];
  readonly #workers: Worker[] = [];
  readonly #lag = new Lag();
  #clear: { readonly road: Road; readonly worker: Worker } | undefined;
  #slots = 0;

  constructor(field: Field, plan: RowPlan, { n, seed, again, lane }: TrialPlan) {
    [this.field, this.number, this.#lane] = [field, n, lane];
    this.random = randomFrom(seed);
    this.name = `${plan.row.replace(/[^a-z]+/g, '-')}-${n}${again > 0 ? `-again-${again}` : ''}`;
  }

  get key(): bigint {
    return lockKey(this.name);
  }

  /** One of these, by the seed. */
  pick<T>(choices: readonly [T, ...T[]]): T {
    return choices[Math.floor(this.random() * choices.length)] ?? choices[0];
  }

  /** These in turn, so that each has its share of the trials. */
  turn<T>(choices: readonly [T, ...T[]]): T {
    return choices[this.number % choices.length] ?? choices[0];
  }

  between(leastMs: number, mostMs: number): number {
    return leastMs + this.random() * (mostMs - leastMs);
  }

  async road(): Promise<Road> {
    const road = await this.field.way.open(this.#lane);
    this.#roads.push(road);
    return road;
  }

  async hire(): Promise<Worker> {
    const worker = await this.field.crew.hire();
    this.#workers.push(worker);
    return worker;
  }

  newSlot(): string {
    return new Date(Date.UTC(2026, 10, 29, 12, this.#slots++)).toISOString();
  }

  order(road: Road, slot: string, work: readonly Step[], more: OrderOptions = {}): Omit<Order, 'id'> {
    const { name } = this;
    const { target } = road;
    return { job: name, lock: name, slot, target, leaseMs, timeoutMs: 30_000, waitMs: 0, work, ...more };
  }

  /** A worker and a road of its own, there to be broken. */
  async prepare(): Promise<Prepared> {
    await this.field.db.query('INSERT INTO faults.counter VALUES ($1, 0) ON CONFLICT DO NOTHING', [
      this.name,
    ]);
    // The next delivery's worker stands by, so that its start is no part of any recovery.
    this.#clear ??= { road: await this.road(), worker: await this.hire() };
    return { road: await this.road(), worker: await this.hire(), slot: this.newSlot() };
  }

  deliver({ road, worker, slot }: Prepared, work: readonly Step[], more?: OrderOptions): Delivery {
    return worker.deliver(this.order(road, slot, work, more));
  }

  async begin(work: readonly Step[], more?: OrderOptions): Promise<Victim> {
    const prepared = await this.prepare();
    return { ...prepared, delivery: this.deliver(prepared, work, more) };
  }

  /**
   * Another delivery of the slot, where nothing is broken; again for as long as it is told that the lock is held, or
   * can't connect.
   */
  async next(slot: string, work: readonly Step[], withinMs: number): Promise<Delivery> {
    const from = Date.now();
    for (;;) {
      const delivery = await this.deliverClear(slot, work);
      const heard = await delivery.first('begun', 'told', 'threw');
      const turnedAway = heard.kind === 'threw' || (heard.kind === 'told' && heard.run.skipReason === 'held');
      if (!turnedAway) return delivery;
      // That a busy machine, or a restarting server, lets nobody in for a while says nothing of the lock.
      if (Date.now() > from + withinMs + (heard.kind === 'threw' ? connectingMs : 0)) {
        this.violate(`the next delivery was turned away for ${withinMs} ms: ${JSON.stringify(heard)}`);
        return delivery;
      }
      await delay(20);
    }
  }

  async deliverClear(slot: string, work: readonly Step[], more?: OrderOptions): Promise<Delivery> {
    this.#clear ??= { road: await this.road(), worker: await this.hire() };
    const { road, worker } = this.#clear;
    return worker.deliver(this.order(road, slot, work, more));
  }

  /** The start of its work. A holder that could not even connect shows nothing; any other end is not what was asked for. */
  async begun(delivery: Delivery): Promise<EventOf<'begun'>> {
    const heard = await delivery.first('begun', 'told', 'threw');
    if (heard.kind === 'begun') return heard;
    if (heard.kind === 'threw' && heard.error.name === 'CannotConnect') this.giveUp(heard.error.message);
    const stopped = delivery.events.find(({ kind }) => kind === 'stopped');
    this.giveUpIfStarved(heard, stopped?.kind === 'stopped' ? stopped.lagMs : 0);
    throw new Error(`no work began: ${described(heard)}`);
  }

  /**
   * When the work of a broken run's successor began. It waits for a lock delay at most, counted from the moment at which
   * the lock was first found free, by whoever asked.
   */
  async recovered(next: Delivery, brokenAt: number, freeAt?: number): Promise<number> {
    const { at } = await this.begun(next);
    this.time('recovery', at - brokenAt);
    if (freeAt !== undefined && at - freeAt > leaseMs + 3 * slackMs)
      this.violate(`the successor began only ${Math.round(at - freeAt)} ms after the lock was free`);
    return at;
  }

  async free(withinMs: number): Promise<Freed> {
    return within(withinMs, `lock of ${this.name} free`, this.field.watch.free(this.key));
  }

  async statusOf(runId: string): Promise<Status | undefined> {
    const rows = await this.field.db.query('SELECT status FROM cronce.run WHERE id = $1', [runId]);
    return rows[0]?.['status'] as Status | undefined;
  }

  /** A start record whose run is dead is settled by the next claim under its lock; at last by this one. */
  async settle(): Promise<void> {
    const standing = async () =>
      (
        await this.field.db.query(`SELECT 1 FROM cronce.run WHERE lock_name = $1 AND status = 'running'`, [
          this.name,
        ])
      ).length > 0;
    const until = Date.now() + 10_000;
    while ((await standing()) && Date.now() < until) {
      await (await this.next(this.newSlot(), [], leaseMs + slackMs)).ended();
      if (await standing()) await delay(500);
    }
  }

  async audit(): Promise<void> {
    const { violations, tooLate } = await audit(this.field, this.name, this.forgotten);
    for (const { ms } of overlaps(this.field, this.name)) this.time('overlap', ms);
    for (const text of violations) this.violate(text);
    if (tooLate[0] !== undefined) this.undone = `frozen between check() and its effect: ${tooLate[0]}`;
  }

  time(name: string, ms: number): void {
    (this.times[name] ??= []).push(ms);
  }

  violate(text: string): void {
    this.violations.push(`${this.name}: ${text}`);
  }

  /** Ends the trial: it shows nothing. */
  giveUp(why: string): never {
    throw new Undone(why);
  }

  /** A run that nobody broke, and that heard nothing of the server since its process, or ours, which has the proxies, did not run. */
  giveUpIfStarved(ended: Ended, itsLagMs = this.#clear?.worker.longestLagMs ?? 0): void {
    const silence = ended.kind === 'told' && ended.run.error?.message.startsWith('nothing was heard');
    const lagMs = Math.max(this.#lag.longestMs, itsLagMs);
    if (silence && lagMs > leaseMs / 8) this.giveUp(`a run that nobody broke was starved for ${lagMs} ms`);
  }

  async close(): Promise<void> {
    this.#lag.end();
    await Promise.all(this.#workers.map((worker) => this.field.crew.release(worker)));
    await Promise.all(this.#roads.map((road) => road.close()));
  }
}

export function described(ended: Ended): string {
  if (ended.kind === 'told')
    return `${ended.run.status} ${ended.run.skipReason ?? ended.run.error?.message ?? ''}`;
  return ended.kind === 'threw' ? `${ended.error.name}: ${ended.error.message}` : 'its worker died';
}

/** A holder that is about to be broken, with what it needs. */
export interface Prepared {
  readonly road: Road;
  readonly worker: Worker;
  readonly slot: string;
}

export interface Victim extends Prepared {
  readonly delivery: Delivery;
}
