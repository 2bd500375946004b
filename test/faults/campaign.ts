/**
 * `npm run faults`: breaks things for real and asks what must hold.
 *
 *     npm run faults                   the whole table, some fifteen minutes
 *     npm run faults -- --short        what `npm test` runs of it
 *     npm run faults -- --trials N     so many of each row at the most
 *     npm run faults -- --row NAME     one row; may be repeated
 *     npm run faults -- --seed N       the same choices again
 *     npm run faults -- --prove        breaks the code on purpose, and shows that a test notices
 */
import { existsSync } from 'node:fs';
import { finish, readFlags, UsageError } from '../../infra/cli/flags.ts';
import { randomFrom } from '../support/random.ts';
import { openGround, type Ground } from './field.ts';
import { hasFailed, plan, type Form, type PlannedRow } from './plan.ts';
import { remarks, table } from './table.ts';
import type { RowResult } from './trial.ts';

interface Request {
  readonly form: Form;
  readonly rows: readonly PlannedRow[];
  readonly seed: number;
  readonly prove: boolean;
}

const command = {
  name: 'npm run faults',
  says: 'kills, freezes, cuts off and restarts things for real, and prints what held',
  flags: {
    short: { says: 'fewer trials of each row' },
    row: { value: 'NAME', many: true, says: 'this row alone; may be given several times' },
    trials: { value: 'N', says: 'so many of each row, 1 to 9999' },
    seed: { value: 'N', says: 'repeats what was drawn' },
    prove: { says: 'breaks the code on purpose, and shows that a test notices' },
  },
} as const;

function requestOf(args: readonly string[]): Request {
  const values = readFlags(command, args);
  const names = values.row ?? plan.map(({ name }) => name);
  const known = plan.map(({ name }) => name).join(', ');
  const rows = names.map((name) => {
    const row = plan.find((one) => one.name === name);
    if (!row) throw new UsageError(`no row is named ${JSON.stringify(name)}; known: ${known}`);
    return row;
  });
  const seed = values.seed ?? String(Date.now() % 1_000_000);
  if (!/^\d{1,9}$/.test(seed))
    throw new UsageError(`--seed is ${JSON.stringify(seed)}; allowed: a whole number of up to nine digits`);
  return { form: formOf(values), rows, seed: Number(seed), prove: values.prove ?? false };
}

function formOf({ short, trials }: { short?: boolean; trials?: string }): Form {
  if (trials === undefined) return short ? 'short' : 'full';
  if (/^[1-9]\d{0,3}$/.test(trials) && !short) return Number(trials);
  throw new UsageError(
    `--trials is ${JSON.stringify(trials)}; allowed: a number from 1 to 9999, without --short`,
  );
}

async function runCampaign({ form, rows, seed }: Request): Promise<boolean> {
  console.log(`faults: ${typeof form === 'number' ? `${form} trials` : form} a row, seed ${seed}`);
  const began = performance.now();
  const ground = await openGround({ random: randomFrom(seed), progress });
  const stop = () => void ground.close().finally(() => process.exit(130));
  process.once('SIGINT', stop).once('SIGTERM', stop);
  try {
    const results = await playAll(ground, rows, form);
    console.log(`\n${table(results)}\n\n${remarks(results)}`);
    const seconds = Math.round((performance.now() - began) / 1_000);
    const failed = results.filter(hasFailed);
    const verdict =
      failed.length === 0 ? 'no violation' : `FAILED: ${failed.map(({ row }) => row).join(', ')}`;
    console.log(`${verdict}; seed ${seed}; ${seconds} s`);
    return failed.length === 0;
  } finally {
    await ground.close();
  }
}

async function playAll(ground: Ground, rows: readonly PlannedRow[], form: Form): Promise<RowResult[]> {
  const results: RowResult[] = [];
  for (const { play } of rows) {
    const played = await play(ground, form);
    clearProgress();
    console.log(table(played).split('\n').slice(1).join('\n'));
    results.push(...played);
  }
  return results;
}

/** One line that is written over; where nobody looks on, a line now and then. */
function progress(row: string, done: number, of: number): void {
  if (process.stdout.isTTY) process.stdout.write(`\r\u001b[K${row} ${done}/${of}`);
  else if (done < of && done % Math.ceil(of / 4) === 0) console.log(`  ${row} ${done}/${of}`);
}

function clearProgress(): void {
  if (process.stdout.isTTY) process.stdout.write('\r\u001b[K');
}

async function prove(): Promise<boolean> {
  const file = new URL('prove.ts', import.meta.url);
  if (!existsSync(file)) throw new UsageError('--prove is not there yet');
  const { prove: proveAll } = (await import(file.href)) as { prove: () => Promise<boolean> };
  return proveAll();
}

async function main(): Promise<number> {
  try {
    const request = requestOf(process.argv.slice(2));
    const holds = request.prove ? await prove() : await runCampaign(request);
    return holds ? 0 : 1;
  } catch (error) {
    const isPlain = error instanceof Error && ['UsageError', 'HelpWanted'].includes(error.name);
    if (!isPlain) throw error;
    return finish('faults', error);
  }
}

// Not left to end by itself: Node 20 then may go round for ever over messages to processes that were killed.
process.exit(await main());
