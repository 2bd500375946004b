/**
 * Far more deliveries at one moment than the server has connections: many jobs that fall due in the same minute, each
 * delivered twice, over several processes. `npm run crowd` runs 500 jobs on a server of 100 connections.
 */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { TestDatabase } from '../support/database.ts';
import type { Orders, Told } from './member.ts';

export interface CrowdOptions extends Omit<Orders, 'jobs'> {
  readonly jobs: number;
  readonly processes: number;
}

export interface Outcome extends Told {
  /** Of a job's slot so many successes. */
  readonly successes: readonly number[];
  /** Reasons of the deliveries that were turned away. */
  readonly skips: Readonly<Record<string, number>>;
}

const member = fileURLToPath(new URL('member.ts', import.meta.url));

/** Each job's two deliveries come from two processes. */
export async function crowd(db: TestDatabase, options: CrowdOptions): Promise<Outcome> {
  const { jobs: count, processes, ...orders } = options;
  const names = Array.from({ length: count }, (_, n) => `crowd-${n}`);
  const shares = Array.from({ length: processes }, (_, p) =>
    [0, 1].flatMap((copy) => names.filter((_, n) => (n + copy) % processes === p)),
  );
  const told = await Promise.all(shares.map((jobs) => tellOf({ ...orders, jobs })));
  const rows = await db.query(
    `SELECT job, count(*) FILTER (WHERE status = 'succeeded')::int AS successes FROM cronce.run GROUP BY job`,
  );
  const skips = await db.query(
    `SELECT skip_reason, count(*)::int FROM cronce.run WHERE status = 'skipped' GROUP BY 1`,
  );
  return {
    decided: told.reduce((sum, { decided }) => sum + decided, 0),
    thrown: told.flatMap(({ thrown }) => thrown),
    successes: names.map((name) => Number(rows.find(({ job }) => job === name)?.['successes'] ?? 0)),
    skips: Object.fromEntries(skips.map((row) => [String(row['skip_reason']), Number(row['count'])])),
  };
}

async function tellOf(orders: Orders): Promise<Told> {
  const child = spawn(process.execPath, ['--import', 'tsx', member, JSON.stringify(orders)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let out = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => (out += text));
  const code = await new Promise((resolve) => child.on('close', resolve));
  if (code !== 0) throw new Error(`a process of the crowd ended with ${String(code)}`);
  return JSON.parse(out) as Told;
}
