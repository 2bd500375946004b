/** The short form of the fault campaign: every row, few trials. `npm run faults` is the full one. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { openGround, type Ground } from './field.ts';
import { hasFailed, plan, type PlannedRow } from './plan.ts';
import { table } from './table.ts';
import type { RowResult } from './trial.ts';
import { randomFrom } from '../support/random.ts';

const seed = Date.now() % 1_000_000;
const results: RowResult[] = [];
let ground: Ground;

beforeAll(async () => {
  ground = await openGround({ random: randomFrom(seed) });
});
afterAll(async () => {
  await ground.close();
  console.log(`faults, short form, seed ${seed}\n${table(results)}`);
});

async function demandHolds({ play }: PlannedRow): Promise<void> {
  const played = await play(ground, 'short');
  results.push(...played);
  const wrong = played.filter(hasFailed).map(({ row, violations, undone }) => ({ row, violations, undone }));
  expect(wrong, `seed ${seed}`).toEqual([]);
}

/** They mostly wait, and so go side by side. */
it.concurrent.each(plan.filter(({ disturbs }) => !disturbs))('holds: $name', demandHolds, 120_000);

it.each(plan.filter(({ disturbs }) => disturbs))('holds: $name', demandHolds, 120_000);
