import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { finish, readFlags, UsageError } from '../../infra/cli/flags.ts';
import { hasPgbouncer, pgbouncerWay } from '../faults/ways.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { scratchFolder } from '../support/scratch.ts';
import { startServer } from '../support/server.ts';
import { accounts, balance, type Books } from './account.ts';
import { services } from './jobs.ts';
import { calendarOf, World, type Plan } from './world.ts';

/** From here on: Sydney's spring change, then Berlin's and New York's autumn ones. */
export const quarter = { start: new Date('2026-09-20T00:00:00Z'), days: 90, seed: 1 } as const satisfies Plan;

/** Plays the plan on this database, reached by `url`, and balances the books. */
export async function simulate(
  plan: Plan,
  db: TestDatabase,
  onProgress: (share: number) => void = () => undefined,
  url?: string,
): Promise<Books> {
  const world = new World(plan, db, url);
  await world.run(onProgress);
  return balance(world, db, catchUpLimits());
}

/** The most that may be caught up after one outage, for each job of each deployment. */
function catchUpLimits(): Map<string, number> {
  const jobs = services(() => async () => null).flatMap(({ deployment, versions }) =>
    versions.flat().map((job) => ({ ...job, name: `${deployment} ${job.name}` })),
  );
  const most = { skip: 0, one: 1, all: Infinity };
  return new Map(jobs.map((job) => [job.name, Math.min(most[job.catchUp], job.catchUpLimit)]));
}

export function tableOf({ lines }: Books): string {
  const head = ['job', 'due', ...accounts, 'caught up', 'turned away for it', 'given up for a catch-up'];
  const rows = lines.map(({ job, due, by, caughtUp, turnedAway, givenUp }) =>
    [job, due, ...accounts.map((account) => by[account]), caughtUp, turnedAway, givenUp].map(String),
  );
  const widths = head.map((title, column) =>
    Math.max(title.length, ...rows.map((row) => row[column]?.length ?? 0)),
  );
  const line = (cells: readonly string[]) =>
    cells
      .map((cell, column) =>
        column === 0 ? cell.padEnd(widths[0] ?? 0) : cell.padStart(widths[column] ?? 0),
      )
      .join('  ');
  return [line(head), ...rows.map(line)].join('\n');
}

const command = {
  name: 'npm run simulate',
  says: 'drives months of schedules, outages and redeployments through it, and accounts for every due slot',
  flags: {
    days: { value: 'N', says: '2 to 365; default 90' },
    seed: { value: 'N', says: 'repeats what was drawn; default 1' },
    json: { says: 'the accounts as JSON' },
  },
} as const;

function planOf(args: readonly string[]): Plan & { readonly json: boolean } {
  const values = readFlags(command, args);
  const whole = (name: string, given: string | undefined, usual: number, least: number, most: number) => {
    const n = Number(given ?? usual);
    if (!Number.isInteger(n) || n < least || n > most)
      throw new UsageError(`--${name} is ${given}; allowed: ${least} to ${most}`);
    return n;
  };
  const days = whole('days', values.days, quarter.days, 2, 365);
  return {
    start: quarter.start,
    days,
    seed: whole('seed', values.seed, quarter.seed, 0, 2 ** 31),
    json: values.json ?? false,
  };
}

/** A new backend for each of some 50,000 sessions is most of the time that a quarter takes. Null without PgBouncer. */
export async function pooled(db: TestDatabase, folder: string) {
  if (!(await hasPgbouncer())) {
    console.error('PgBouncer is not installed (apt-get install pgbouncer): this takes several times as long');
    return null;
  }
  const way = await pgbouncerWay(db.url, folder, 30);
  return { url: way.url, close: async () => way.close() };
}

async function main(): Promise<void> {
  const plan = planOf(process.argv.slice(2));
  const say = (text: string) => {
    if (!plan.json) console.log(text);
  };
  const { outage, pause, redeploy, end } = calendarOf(plan);
  const short = (at: Date) => at.toISOString().slice(0, 16);
  say(`${plan.days} days from ${short(plan.start)} to ${short(end)}, seed ${plan.seed}`);
  say(
    `outage ${short(outage.from)} to ${short(outage.until)}, pause ${short(pause.from)} to ${short(pause.until)}, redeploy ${short(redeploy)}`,
  );
  const folder = await scratchFolder();
  const server = await startServer({ dataDir: join(folder.path, 'server') });
  try {
    const db = await freshDatabase({ serverUrl: server.url });
    let told = 0;
    const pool = await pooled(db, folder.path);
    const onProgress = (share: number) => {
      if (share * 10 < told + 1) return;
      told = Math.floor(share * 10);
      say(`${told * 10} %`);
    };
    const books = await simulate(plan, db, onProgress, pool?.url);
    await pool?.close();
    console.log(plan.json ? JSON.stringify(books) : tableOf(books));
    for (const violation of books.violations) say(`VIOLATION  ${violation}`);
    say(
      books.violations.length === 0
        ? 'every due slot is accounted for, none succeeded twice'
        : `${books.violations.length} violations`,
    );
    process.exitCode = books.violations.length === 0 ? 0 : 1;
    await db.drop();
  } finally {
    await server.stop();
    await folder.remove();
    await rm(folder.path, { recursive: true, force: true });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  main().catch((error: unknown) => finish('simulate', error));
