/**
 * `npm run schedules`: draws schedules of real deliveries with real injuries from a seed, and asks what must hold.
 *
 *     npm run schedules                              100 of them
 *     npm run schedules -- --rounds 1000 --seed 7    the same plans again; their timing is the machine's
 */
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { finish, readFlags, UsageError } from '../../infra/cli/flags.ts';
import { startPostgres } from '../../infra/local/postgres.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { randomFrom } from '../support/random.ts';
import { scratchFolder } from '../support/scratch.ts';
import { drawPlan } from './draw.ts';
import { play, tables } from './play.ts';
import { violationsOf } from './verdict.ts';

export interface Request {
  readonly seed: number;
  readonly rounds: number;
  /** How many are played at a time: they mostly wait. */
  readonly atOnce: number;
}

export interface Broken {
  readonly round: number;
  readonly violations: readonly string[];
  /** The plan, as one line. */
  readonly plan: string;
}

/** Round n of a seed is drawn from both, so that any one can be looked at again. */
export async function playSchedules(
  { seed, rounds, atOnce }: Request,
  db: TestDatabase,
  onBroken: (broken: Broken) => void = () => undefined,
): Promise<Broken[]> {
  await db.query(tables);
  await db.query(`GRANT schedules_job TO ${db.role.name}`);
  const broken: Broken[] = [];
  let next = 1;
  const playOn = async () => {
    while (next <= rounds) {
      const round = next++;
      const plan = drawPlan(randomFrom(seed * 100_003 + round));
      const violations = await violationsOf(await play(plan, `round-${round}`, db), db);
      if (violations.length === 0) continue;
      broken.push({ round, violations, plan: JSON.stringify(plan) });
      onBroken(broken.at(-1) as Broken);
    }
  };
  await Promise.all(Array.from({ length: atOnce }, playOn));
  return broken;
}

/** @throws {UsageError} */
function wholeOf(name: string, given: string | undefined, usual: number, most: number): number {
  const n = Number(given ?? usual);
  if (!Number.isInteger(n) || n < 1 || n > most)
    throw new UsageError(`--${name} is ${given}; allowed: a whole number from 1 to ${most}`);
  return n;
}

const command = {
  name: 'npm run schedules',
  says: 'draws schedules of kills, cuts, forced ends and odd settings, and asks four invariants of them',
  flags: {
    rounds: { value: 'N', says: 'so many; default 100' },
    seed: { value: 'N', says: 'repeats what was drawn' },
  },
} as const;

async function main(): Promise<number> {
  const began = performance.now();
  const values = readFlags(command, process.argv.slice(2));
  const seed = wholeOf('seed', values.seed, (Date.now() % 999_999) + 1, 999_999_999);
  const request = { seed, rounds: wholeOf('rounds', values.rounds, 100, 1_000_000), atOnce: 16 };
  console.log(`${request.rounds} schedules, seed ${seed}`);
  const folder = await scratchFolder();
  const settings = { fsync: 'off', max_connections: '300' };
  const server = await startPostgres({ dataDir: join(folder.path, 'server'), settings });
  try {
    const db = await freshDatabase({ serverUrl: server.url });
    const broken = await playSchedules(request, db, ({ round, violations, plan }) =>
      console.log(`round ${round}: ${violations.join('; ')}\n  ${plan}`),
    );
    const verdict = broken.length === 0 ? 'no violation' : `FAILED: ${broken.length} schedules`;
    console.log(`${verdict}; seed ${seed}; ${Math.round((performance.now() - began) / 1_000)} s`);
    await db.drop();
    return broken.length === 0 ? 0 : 1;
  } finally {
    await server.kill();
    await folder.remove();
  }
}

// Not left to end by itself: a connection that was cut off on purpose may stand for as long as its lease.
if (process.argv[1] === fileURLToPath(import.meta.url))
  process.exit(await main().catch((error: unknown) => finish('schedules', error)));
