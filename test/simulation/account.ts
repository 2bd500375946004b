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
  /** Turned away by a run that caught up or made up for another slot. */
  readonly turnedAway: number;
  /** Of these, what never ran. */
  readonly givenUp: number;
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
  /** Its delivery by the schedule met a run of another slot that the sweep, or one before it, had asked for. */
  readonly turnedAway: boolean;
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
  const violations = [
    ...violationsOf(world, lines, slots),
    ...(await beyondTheLimit(db, limits)),
    ...(await atOnce(db)),
  ];
  return { lines, violations };
}

async function recorded(db: TestDatabase): Promise<Map<string, Slot>> {
  const rows = (await db.query(
    `SELECT r.deployment || ' ' || r.job || ' ' || r.slot AS key,
            array_agg(DISTINCT coalesce(r.skip_reason, r.status)) AS statuses,
            count(*) FILTER (WHERE r.status = 'succeeded')::int AS successes,
            bool_or(r.status = 'succeeded' AND r.trigger = 'sweep') AND bool_or(r.status = 'missed') AS "caughtUp",
            bool_or(r.skip_reason = 'held' AND r.trigger <> 'sweep' AND b.trigger = 'sweep'
                    AND (b.deployment, b.job, b.slot) <> (r.deployment, r.job, r.slot)) IS TRUE AS "turnedAway"
     FROM cronce.run r LEFT JOIN cronce.run b ON b.id = r.blocked_by
     WHERE r.job <> 'sweep' GROUP BY r.deployment, r.job, r.slot`,
  )) as unknown as (Omit<Slot, 'statuses'> & { key: string; statuses: string[] })[];
  return new Map(rows.map(({ key, statuses, ...rest }) => [key, { statuses: new Set(statuses), ...rest }]));
}

function lineOf(job: string, due: readonly Due[], slots: ReadonlyMap<string, Slot>): JobLine {
  const by = Object.fromEntries(accounts.map((account) => [account, 0])) as Record<Account, number>;
  let [caughtUp, turnedAway, givenUp] = [0, 0, 0];
  for (const { slot } of due) {
    const found = slots.get(`${job} ${slot}`);
    const account = accountOf(found);
    by[account] += 1;
    if (found?.caughtUp) caughtUp += 1;
    if (found?.turnedAway) turnedAway += 1;
    if (found?.turnedAway && !cameToAnEnd.includes(account)) givenUp += 1;
  }
  return { job, due: due.length, caughtUp, turnedAway, givenUp, by };
}

const cameToAnEnd: readonly Account[] = ['succeeded', 'failed', 'lost', 'too_late', 'on_hold'];

/** Slots that nobody delivered and that were run late, in one outage: between two that came by themselves. */
async function beyondTheLimit(db: TestDatabase, limits: ReadonlyMap<string, number>): Promise<string[]> {
  const rows = (await db.query(
    `WITH slot AS (
       SELECT deployment || ' ' || job AS job, scheduled_for AS due,
         bool_or(trigger IN ('rule', 'scheduler')) AS came,
         bool_or(status = 'missed') AND bool_or(trigger = 'sweep' AND fence IS NOT NULL) AS "caughtUp"
       FROM cronce.run WHERE job <> 'sweep' GROUP BY deployment, job, scheduled_for),
     outage AS (
       SELECT *, count(*) FILTER (WHERE came) OVER (PARTITION BY job ORDER BY due) AS nth FROM slot)
     SELECT job, nth, count(*)::int AS n FROM outage WHERE "caughtUp" GROUP BY job, nth`,
  )) as unknown as { job: string; nth: string; n: number }[];
  return rows
    .filter(({ job, n }) => n > (limits.get(job) ?? 0))
    .map(({ job, n }) => `${job}: ${n} slots caught up after one outage`);
}

/** Runs of one job's owed slots that overlap. */
async function atOnce(db: TestDatabase): Promise<string[]> {
  const rows = await db.query(
    `SELECT a.deployment || ' ' || a.job || ': ' || a.slot || ' and ' || b.slot || ', both owed, ran at once' AS what
     FROM cronce.run a JOIN cronce.run b USING (deployment, job)
     WHERE a.trigger = 'sweep' AND b.trigger = 'sweep' AND a.fence IS NOT NULL AND b.fence IS NOT NULL AND a.id <> b.id
       AND a.started_at < b.started_at AND b.started_at < a.finished_at`,
  );
  return rows.map(({ what }) => String(what));
}

function accountOf(slot: Slot | undefined): Account {
  if (!slot) return 'unaccounted';
  if (slot.statuses.has('timed_out')) return 'failed';
  return accounts.find((account) => slot.statuses.has(account)) ?? 'unaccounted';
}

function violationsOf(world: World, lines: readonly JobLine[], slots: ReadonlyMap<string, Slot>): string[] {
  const owed = new Set(world.due.map(({ job, slot }) => `${job} ${slot}`));
  const found: string[] = [];
  if (world.dropped > 0) found.push(`Lambda dropped ${world.dropped} invocations, too deep in their chains`);
  for (const { job, due, by, givenUp } of lines) {
    if (givenUp > 0) found.push(`${job}: ${givenUp} slots given up for a catch-up`);
    if (by.unaccounted > 0) found.push(`${job}: ${by.unaccounted} slots unaccounted for`);
    const sum = Object.values(by).reduce((total, n) => total + n, 0);
    if (sum !== due) found.push(`${job}: ${sum} accounts of ${due} slots`);
  }
  for (const [key, { statuses, successes }] of slots) {
    if (successes > 1) found.push(`${key}: ${successes} successes`);
    if (!owed.has(key)) found.push(`${key}: recorded as ${[...statuses].join(', ')}, but never due`);
  }
  return found;
}
