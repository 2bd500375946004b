/** Jobs whose params say how they end, and runs of every outcome, made by real deliveries where they can be. */
import { randomUUID } from 'node:crypto';
import { coordinate, type Coordinator } from '../../src/coordinate.ts';
import { defineJob, defineJobs, type WorkContext } from '../../src/job.ts';
import type { Json, Logger, RunRecord } from '../../src/run.ts';
import { slotName, type Delivery } from '../../src/path/trigger.ts';
import type { TestDatabase } from './database.ts';

type End = 'return' | 'throw' | 'wait' | 'hold' | 'die';

const holds = new Map<string, { readonly enter: () => void; readonly released: Promise<void> }>();

async function work({ tx, params, signal, slot }: WorkContext): Promise<unknown> {
  const { end, output } = params as { end: End; output?: Json };
  switch (end) {
    case 'return':
      return output ?? { done: 1 };
    case 'throw':
      throw new Error(`the mail server said <script>alert("no")</script> & hung up`);
    case 'wait':
      return new Promise((_, reject) =>
        signal.addEventListener('abort', () => reject(signal.reason as Error)),
      );
    case 'hold':
      holds.get(slot)?.enter();
      return holds.get(slot)?.released;
    case 'die':
      return tx.query('SELECT pg_terminate_backend(pg_backend_pid())');
  }
}

export const tidy = defineJob({
  name: 'tidy',
  description: 'Clears away <b>what is over</b> & done with.',
  schedule: 'rate(5 minutes)',
  timeoutMs: 1_000, // only work that waits comes to it, however busy the machine
  work,
});
export const report = defineJob({
  name: 'report',
  description: 'Sums up the day before the slot.',
  schedule: [{ at: 'cron(15 7 ? * MON-FRI *)', timeZone: 'Europe/Berlin' }, 'cron(0 12 1 * ? *)'],
  retries: 0,
  work,
});
export const byHand = defineJob({ name: 'by-hand', work });

export const jobs = defineJobs([tidy, report, byHand]);

export const silent: Logger = { debug() {}, info() {}, warn() {}, error() {} };

export function coordinatorFor(url: string): Coordinator {
  const target = { url, driver: 'pg', connectTimeoutMs: 5_000 } as const;
  return { target, leaseMs: 5_000, sinks: [], publishTimeoutMs: 500, logger: silent };
}

export async function deliver(
  url: string,
  given: Partial<Delivery>,
  end: End,
  output?: Json,
): Promise<RunRecord> {
  const scheduledFor = given.scheduledFor ?? new Date('2026-01-05T06:15:00Z');
  const delivery: Delivery = {
    // Its short time is for who waits it out: on a busy machine anybody may need more.
    job: end === 'wait' ? tidy : { ...tidy, timeoutMs: 60_000 },
    slot: slotName(scheduledFor),
    scheduledFor,
    slotGuessed: false,
    scheduledForGuessed: false,
    offSchedule: false,
    trigger: 'rule',
    byHand: false,
    deliveryId: randomUUID(),
    requestedBy: null,
    params: { end, ...(output === undefined ? {} : { output }) },
    ...given,
  };
  return coordinate(delivery, 60_000, coordinatorFor(url));
}

/** Holds its lock until it is released, so that other deliveries are turned away. Resolves once it is at work. */
export async function hold(url: string, given: Partial<Delivery> & { readonly slot: string }) {
  let release: () => void = () => undefined;
  const released = new Promise<void>((resolve) => (release = resolve));
  let run: Promise<RunRecord> | undefined;
  await new Promise<void>((enter) => {
    holds.set(given.slot, { enter, released });
    run = deliver(url, given, 'hold');
  });
  return {
    async release() {
      release();
      return run;
    },
  };
}

/** One run, at least, of every outcome and reason; `tidy` is left paused. Answers how many there are. */
export async function makeEveryOutcome(
  db: TestDatabase,
  firstSlot = new Date('2026-11-29T06:00:00Z'),
): Promise<number> {
  const at = (index: number) => new Date(firstSlot.getTime() + index * 300_000);
  await deliver(db.url, { scheduledFor: at(0) }, 'return');
  await deliver(db.url, { scheduledFor: at(0) }, 'return'); // a duplicate
  await deliver(db.url, { scheduledFor: at(1) }, 'throw');
  await deliver(db.url, { scheduledFor: at(2) }, 'wait'); // its deadline ends it
  await deliver(db.url, { scheduledFor: at(3) }, 'die');
  const holder = await hold(db.url, {
    job: byHand,
    slot: 'manual:first',
    trigger: 'manual',
    requestedBy: 'run token 1',
  });
  await deliver(db.url, { job: byHand, slot: 'manual:second', trigger: 'manual' }, 'return'); // held
  await holder.release();
  await deliver(db.url, { job: report, scheduledFor: at(0), slotGuessed: true }, 'throw');
  await deliver(db.url, { scheduledFor: at(9), offSchedule: true }, 'return');
  await retouch(db, [
    [
      'cancelled',
      "status = 'cancelled', cancel_requested_by = 'run token 1', cancel_requested_at = finished_at",
    ],
    ['missed', "status = 'missed', fence = NULL, attempt = NULL, started_at = NULL, final = true"],
    ['on_hold', `${skipped('on_hold')}, final = NULL`],
    ['too_late', `${skipped('too_late')}, final = NULL`],
    [
      'owed',
      `${skipped('held')}, final = false, blocked_by = gen_random_uuid(), blocked_by_deployment = 'shop-prod'`,
    ],
    [
      'delayed',
      `delayed_ms = 14800, (blocked_by, blocked_by_deployment) =
         (SELECT id, deployment FROM cronce.run WHERE status = 'lost' LIMIT 1)`,
    ],
    ['running', "status = 'running', finished_at = NULL, published_at = NULL, final = NULL, output = 'null'"],
  ]);
  await db.query(`UPDATE cronce.job SET paused_at = '2026-11-29T09:00:00Z', paused_by = 'ops', pause_reason = 'moving house'
    WHERE name = 'tidy'`);
  await deliver(db.url, { scheduledFor: at(4) }, 'return');
  const [row] = await db.query('SELECT count(*)::integer AS runs FROM cronce.run');
  return row?.['runs'] as number;
}

function skipped(reason: string): string {
  return `status = 'skipped', skip_reason = '${reason}', fence = NULL, attempt = NULL, started_at = NULL`;
}

/** What only the sweep, an operator or bad luck brings about: a success of a slot of its own, made into that. */
async function retouch(
  db: TestDatabase,
  changes: readonly (readonly [name: string, set: string])[],
): Promise<void> {
  for (const [name, set] of changes) {
    const { id } = await deliver(
      db.url,
      { job: byHand, slot: `manual:${name}`, trigger: 'manual' },
      'return',
    );
    await db.query(`UPDATE cronce.run SET ${set} WHERE id = $1`, [id]);
  }
}
