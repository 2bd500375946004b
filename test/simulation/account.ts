import type { TestDatabase } from '../support/database.ts';
import type { Due, World } from './world.ts';

/** The one account of a due slot; the first that applies. A slot may have been missed and caught up all the same. */
export const accounts = [
  'succeeded',
  'failed',
  'lost',
  'paused',
  'too_late',
  'on_hold',
  'held',
  'missed',
  'unaccounted',
] as const;
export type Account = (typeof accounts)[number];

export interface JobLine {
  readonly job: string;
  readonly due: number;
  readonly caughtUp: number;
  readonly by: Readonly<Record<Account, number>>;
}

export interface Books {
  readonly lines: readonly JobLine[];
  readonly violations: readonly string[];
}

interface Slot {
  readonly statuses: ReadonlySet<string>;
  readonly successes: number;
  readonly caughtUp: boolean;
}

/** What became of each due slot, by the records, and whatever should not be. */
export async function balance(
  world: World,
  db: TestDatabase,
  limits: ReadonlyMap<string, number>,
): Promise<Books> {
  const slots = await recorded(db);
  const jobs = [...new Set(world.due.map(({ job }) => job))];
  const lines = jobs.map((job) =>
    lineOf(
      job,
      world.due.filter((due) => due.job === job),
      slots,
    ),
  );
  return { lines, violations: violationsOf(world, lines, slots, limits) };
}

async function recorded(db: TestDatabase): Promise<Map<string, Slot>> {
  const rows = (await db.query(
    `SELECT deployment || ' ' || job || ' ' || slot AS key, array_agg(DISTINCT coalesce(skip_reason, status)) AS statuses,
            count(*) FILTER (WHERE status = 'succeeded')::int AS successes,
            bool_or(status = 'succeeded' AND trigger = 'sweep') AND bool_or(status = 'missed') AS "caughtUp"
     FROM cronce.run WHERE job <> 'sweep' GROUP BY deployment, job, slot`,
  )) as unknown as { key: string; statuses: string[]; successes: number; caughtUp: boolean }[];
  return new Map(rows.map(({ key, statuses, ...rest }) => [key, { statuses: new Set(statuses), ...rest }]));
}

function lineOf(job: string, due: readonly Due[], slots: ReadonlyMap<string, Slot>): JobLine {
  const by = Object.fromEntries(accounts.map((account) => [account, 0])) as Record<Account, number>;
  let caughtUp = 0;
  for (const { slot } of due) {
    const found = slots.get(`${job} ${slot}`);
    by[accountOf(found)] += 1;
    if (found?.caughtUp) caughtUp += 1;
  }
  return { job, due: due.length, caughtUp, by };
}

function accountOf(slot: Slot | undefined): Account {
  if (!slot) return 'unaccounted';
  if (slot.statuses.has('timed_out')) return 'failed';
  return accounts.find((account) => slot.statuses.has(account)) ?? 'unaccounted';
}

function violationsOf(
  world: World,
  lines: readonly JobLine[],
  slots: ReadonlyMap<string, Slot>,
  limits: ReadonlyMap<string, number>,
): string[] {
  const owed = new Set(world.due.map(({ job, slot }) => `${job} ${slot}`));
  const found: string[] = [];
  for (const { job, due, by } of lines) {
    if (by.unaccounted > 0) found.push(`${job}: ${by.unaccounted} slots unaccounted for`);
    const sum = Object.values(by).reduce((total, n) => total + n, 0);
    if (sum !== due) found.push(`${job}: ${sum} accounts of ${due} slots`);
  }
  for (const [key, { statuses, successes }] of slots) {
    if (successes > 1) found.push(`${key}: ${successes} successes`);
    if (!owed.has(key)) found.push(`${key}: recorded as ${[...statuses].join(', ')}, but never due`);
  }
  for (const [job, most] of world.caughtUpInOnePass)
    if (most > (limits.get(job) ?? 0)) found.push(`${job}: ${most} slots caught up in one pass`);
  return found;
}
