/**
 * Many processes, slots delivered several times at once and again, and faults at random among them. Nothing is asked of
 * a single run: what must hold is asked of the database when the storm is over.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { lockKey } from '../../src/lock-name.ts';
import { deservesRetry } from '../../src/run.ts';
import { audit } from './audit.ts';
import { within, type Delivery, type Ended, type Worker } from './crew.ts';
import { openField, type Field, type Ground } from './field.ts';
import type { Order, Step } from './orders.ts';
import { leaseMs, slackMs, type RowResult } from './trial.ts';
import type { Road } from './ways.ts';

export interface StormOptions {
  readonly processes: number;
  readonly slots: number;
  readonly deliveries: number;
  readonly forMs: number;
  readonly restarts: number;
}

export async function storm(ground: Ground, options: StormOptions): Promise<RowResult> {
  const field = await openField(ground);
  const weather = new Storm(field, options);
  try {
    await weather.blow();
    await weather.findOutWhatHolds();
  } catch (error) {
    weather.violations.push(error instanceof Error ? error.message : String(error));
  }
  await weather.close();
  const left = (await field.close()).map((leak) => `left behind: ${leak}`);
  return {
    row: 'storm',
    trials: options.slots * options.deliveries,
    undone: [],
    violations: [...weather.violations, ...field.crew.strays, ...left],
    times: weather.times,
    note: weather.summary(),
  };
}

/** Two locks whose holder others pass by, two at which they wait a while. */
const jobs = ['storm-a', 'storm-b', 'storm-c', 'storm-d'] as const;
const waitMs: Readonly<Record<string, number>> = { 'storm-c': 1_500, 'storm-d': 3_000 };
/** As often as Lambda delivers again what ended in an error. */
const retries = 2;

/** A process on a road of its own. A killed one is followed by another. */
interface Station {
  readonly road: Road;
  worker: Worker;
  delivery: Delivery | undefined;
  /** Something is broken here already. */
  troubled: boolean;
}

interface Due {
  readonly job: (typeof jobs)[number];
  readonly slot: string;
  readonly atMs: number;
}

interface Fault {
  readonly name: string;
  readonly weight: number;
  /** Breaks it and, after a while, lets it be. */
  readonly strike: (station: Station, storm: Storm) => Promise<unknown>;
}

const faults: readonly [Fault, ...Fault[]] = [
  { name: 'kill', weight: 3, strike: ({ worker }) => worker.kill() },
  {
    name: 'freeze',
    weight: 3,
    async strike({ worker }, storm) {
      worker.freeze();
      await delay(storm.between(200, 4_000));
      worker.thaw();
    },
  },
  {
    name: 'partition',
    weight: 3,
    async strike({ road }, storm) {
      road.proxy.partition();
      await delay(storm.between(300, 5_000));
      await road.proxy.heal();
    },
  },
  {
    name: 'stall',
    weight: 2,
    async strike({ road }, storm) {
      road.proxy.stall(storm.random() < 0.5 ? 'both' : 'toClient');
      await delay(storm.between(300, 4_000));
      road.proxy.resume();
    },
  },
  {
    name: 'delay',
    weight: 1,
    async strike({ road }, storm) {
      road.proxy.delay(storm.between(20, 300));
      await delay(2_000);
      road.proxy.delay(0);
    },
  },
  {
    name: 'cut',
    weight: 2,
    async strike({ road }) {
      road.proxy.cut();
    },
  },
  {
    name: 'terminate',
    weight: 2,
    strike: (station, storm) => storm.signalBackend(station, 'pg_terminate_backend'),
  },
  {
    name: 'cancel',
    weight: 1,
    strike: (station, storm) => storm.signalBackend(station, 'pg_cancel_backend'),
  },
];

class Storm {
  readonly random: () => number;
  readonly violations: string[] = [];
  readonly times: Record<string, number[]> = {};
  readonly #field: Field;
  readonly #options: StormOptions;
  readonly #stations: Station[] = [];
  #free: Station[] = [];
  #waiting: ((station: Station) => void)[] = [];
  readonly #struck = new Map<string, number>();
  readonly #ended = new Map<string, number>();
  #done = 0;
  #slotsDone = '';

  constructor(field: Field, options: StormOptions) {
    [this.#field, this.#options, this.random] = [field, options, field.ground.random];
  }

  between(leastMs: number, mostMs: number): number {
    return leastMs + this.random() * (mostMs - leastMs);
  }

  /** To its end: then nothing is broken any more, and every delivery has ended. */
  async blow(): Promise<void> {
    for (const job of jobs) await this.#field.db.query('INSERT INTO faults.counter VALUES ($1, 0)', [job]);
    await Promise.all(Array.from({ length: this.#options.processes }, () => this.#openStation()));
    const over = new AbortController();
    const raging = Promise.all([this.#rage(over.signal), this.#restartNowAndThen()]);
    await Promise.all(this.#plan().map((due) => this.#deliver(due)));
    over.abort();
    await raging;
  }

  async #openStation(): Promise<void> {
    const station: Station = {
      road: await this.#field.way.open(0),
      worker: await this.#field.crew.hire(),
      delivery: undefined,
      troubled: false,
    };
    this.#stations.push(station);
    this.#free.push(station);
  }

  /** Of each slot two deliveries at once, the others soon after. */
  #plan(): Due[] {
    const { slots, deliveries, forMs } = this.#options;
    return Array.from({ length: slots }, (_, slot) => {
      const atMs = this.between(0, forMs * 0.85);
      return Array.from({ length: deliveries }, (_, n) => ({
        job: jobs[slot % jobs.length] ?? jobs[0],
        slot: new Date(Date.UTC(2026, 10, 29, 0, slot)).toISOString(),
        atMs: n < 2 ? atMs : atMs + this.between(0, forMs * 0.15),
      }));
    }).flat();
  }

  async #deliver(due: Due): Promise<void> {
    await delay(due.atMs);
    for (let attempt = 0; attempt <= retries; attempt++) {
      const ended = await this.#carryOut(due);
      this.#count(this.#ended, nameOf(ended));
      if (!deservesAnother(ended)) break;
      await delay(this.between(200, 1_500));
    }
    this.#done += 1;
    this.#field.ground.progress('storm', this.#done, this.#options.slots * this.#options.deliveries);
  }

  async #carryOut(due: Due): Promise<Ended> {
    const station =
      this.#free.pop() ?? (await new Promise<Station>((resolve) => this.#waiting.push(resolve)));
    if (!station.worker.isAlive) station.worker = await this.#field.crew.hire();
    try {
      station.delivery = station.worker.deliver(this.#order(due, station.road));
      return await station.delivery.ended();
    } finally {
      station.delivery = undefined;
      const next = this.#waiting.shift();
      if (next) next(station);
      else this.#free.unshift(station);
    }
  }

  #order({ job, slot }: Due, { target }: Road, work = this.#work()): Omit<Order, 'id'> {
    return { job, lock: job, slot, target, leaseMs, timeoutMs: 10_000, waitMs: waitMs[job] ?? 0, work };
  }

  #work(): Step[] {
    const odds = this.random();
    return [
      { do: 'count', pauseMs: this.between(5, 80) },
      { do: 'write', rounds: 3, everyMs: 10 },
      { do: 'everything', rounds: 2, everyMs: 20 },
      { do: 'statement', ms: this.between(10, 500) },
      ...(odds < 0.08 ? [{ do: 'throw' } as const] : []),
      ...(odds > 0.97 ? [{ do: 'block', ms: leaseMs * 1.3 } as const] : []),
    ];
  }

  /** Two faults for every five deliveries. */
  async #rage(over: AbortSignal): Promise<void> {
    const { slots, deliveries, forMs } = this.#options;
    const everyMs = forMs / (slots * deliveries * 0.4);
    const going: Promise<unknown>[] = [];
    while (!over.aborted) {
      await delay(this.between(0.5 * everyMs, 1.5 * everyMs));
      const busy = this.#stations.filter(({ delivery, troubled }) => delivery !== undefined && !troubled);
      const station = busy[Math.floor(this.random() * busy.length)];
      if (station) going.push(this.#strike(station));
    }
    await Promise.all(going);
  }

  async #strike(station: Station): Promise<void> {
    const fault = this.#anyFault();
    this.#count(this.#struck, fault.name);
    station.troubled = true;
    await fault.strike(station, this);
    station.troubled = false;
  }

  #anyFault(): Fault {
    let left = this.random() * faults.reduce((sum, { weight }) => sum + weight, 0);
    return faults.find(({ weight }) => (left -= weight) < 0) ?? faults[0];
  }

  async signalBackend({ delivery }: Station, how: string): Promise<void> {
    const begun = delivery?.events.find(({ kind }) => kind === 'begun');
    if (begun?.kind !== 'begun') return;
    const sql = `SELECT ${how}(backend_pid) FROM cronce.run WHERE id = $1 AND status = 'running'`;
    // The server may just be restarting.
    await this.#field.db.query(sql, [begun.runId]).catch(() => undefined);
  }

  async #restartNowAndThen(): Promise<void> {
    const { restarts, forMs } = this.#options;
    for (let n = 0; n < restarts; n++) {
      await delay(forMs / (restarts + 1));
      await this.#field.ground.server.restart(n % 2 === 0 ? 'immediate' : 'fast');
      this.#count(this.#struck, 'restart');
    }
  }

  async findOutWhatHolds(): Promise<void> {
    const overAt = Date.now();
    await within(leaseMs + slackMs, 'end of all locks', this.#allFree());
    (this.times['all free'] ??= []).push(Date.now() - overAt);
    await Promise.all(jobs.map((job) => this.#settle(job)));
    for (const job of jobs) this.violations.push(...(await audit(this.#field, job)).violations);
    await this.#findSlotsWithoutAnEnd();
  }

  async #allFree(): Promise<void> {
    await Promise.all(jobs.map((job) => this.#field.watch.free(lockKey(job))));
    while ((await this.#field.watch.held()).length > 0) await delay(20);
  }

  /** Whose process died, or could reach no server to the last, still stands as running: the next claim settles it. */
  async #settle(job: Due['job']): Promise<void> {
    const { db, crew, way } = this.#field;
    const road = await way.open(0);
    const worker = await crew.hire();
    const standing = `SELECT 1 FROM cronce.run WHERE job = $1 AND status = 'running'`;
    for (let n = 0; n < 20 && (await db.query(standing, [job])).length > 0; n++) {
      const slot = new Date(Date.UTC(2026, 11, 1, 0, n)).toISOString();
      await worker.deliver(this.#order({ job, slot, atMs: 0 }, road, [])).ended();
      await delay(500);
    }
    await road.close();
  }

  /** Each slot has its success, or its records say why not. */
  async #findSlotsWithoutAnEnd(): Promise<void> {
    const rows = await this.#field.db.query(
      `SELECT job || ' ' || to_char(scheduled_for AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI') AS slot,
              bool_or(status = 'succeeded') AS succeeded, string_agg(DISTINCT coalesce(skip_reason, status), ' ') AS reasons
       FROM cronce.run WHERE scheduled_for < '2026-12-01' GROUP BY job, scheduled_for`,
    );
    const planned = this.#options.slots;
    if (rows.length !== planned) this.violations.push(`${planned - rows.length} slots have no record at all`);
    const without = rows.filter(({ succeeded }) => succeeded !== true);
    this.#slotsDone = `${rows.length - without.length} of ${planned} slots succeeded`;
    if (without.length > 0)
      this.#slotsDone += ` (else ${[...new Set(without.map(({ reasons }) => String(reasons)))].join('; ')})`;
  }

  summary(): string {
    const list = (counts: Map<string, number>) =>
      [...counts].map(([name, count]) => `${count} ${name}`).join(', ');
    return `${this.#slotsDone}; faults: ${list(this.#struck)}; deliveries: ${list(this.#ended)}`;
  }

  async close(): Promise<void> {
    await Promise.all(this.#stations.map(({ road }) => road.close()));
  }

  #count(counts: Map<string, number>, name: string): void {
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
}

function nameOf(ended: Ended): string {
  if (ended.kind === 'told') return ended.run.skipReason ?? ended.run.status;
  return ended.kind === 'threw' ? ended.error.name : 'died';
}

/** An invocation that died or threw, or that throws on purpose since attempts remain. */
function deservesAnother(ended: Ended): boolean {
  return ended.kind !== 'told' || deservesRetry(ended.run);
}
