/** A long history, made in one statement: what a deployment has in its tables after years, or after a busy month. */
import { createApp } from '../../src/http/app.ts';
import { defineJob, defineJobs } from '../../src/job.ts';
import { Session } from '../../src/postgres/session.ts';
import { keepingLogger, targetOf } from './coordinator.ts';
import type { TestDatabase } from './database.ts';

/** Those whose runs fill the history. */
export const bulkJobs = Array.from({ length: 7 }, (_, n) =>
  defineJob({ name: `bulk-${n}`, schedule: 'cron(0 * * * ? *)', work: async () => 1 }),
);

/** What the API or the page answers, with a session of its own. */
export async function getFrom(db: TestDatabase, path: string): Promise<Response> {
  const token = 'a-token-that-reads';
  const app = createApp({
    registry: defineJobs(bulkJobs),
    readTokens: [token],
    runTokens: [],
    openSession: async () => Session.open(targetOf(db.url)),
    startRun: async () => Promise.resolve(),
    now: () => new Date(),
    logger: keepingLogger(),
  });
  return app.request(path, { headers: { authorization: `Bearer ${token}` } });
}

export interface HistoryOptions {
  readonly rows: number;
  /** Over how many days until now they spread evenly; the rows of one moment in the order of their ids. */
  readonly days: number;
  /** How many jobs share them: `bulk-0` and so on, each with all outcomes. */
  readonly jobs: number;
}

/**
 * Of a hundred rows 82 have succeeded, 10 failed for good, 5 were held, and one each was a duplicate, missed and cancelled.
 * One in ten is another deployment's. All are told, and nothing is owed.
 */
export async function fillHistory(db: TestDatabase, { rows, days, jobs }: HistoryOptions): Promise<void> {
  const indexes = await db.query(
    `SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS text
     FROM pg_index WHERE indrelid = 'cronce.run'::regclass AND NOT indisprimary`,
  );
  const named = (key: 'name' | 'text') => indexes.map((one) => String(one[key]));
  // Each index is made at once, and not row by row.
  await db.query(`DROP INDEX ${named('name').join(', ')}`);
  await db.query(history(rows, days, jobs));
  // What is made belongs to the table's owner, whoever makes it.
  await db.query(named('text').join('; '));
  await db.query('ANALYZE cronce.run');
}

function history(rows: number, days: number, jobs: number): string {
  return `
    INSERT INTO cronce.run (id, deployment, job, slot, scheduled_for, trigger, status, skip_reason, lock_name, lock_key,
      guard_key, fence, backend_pid, attempt, max_attempts, after_lost, final, lease_ms, lock_delay_ms, params, output, error,
      received_at, claimed_at, started_at, finished_at, published_at, published_to, publish_after)
    SELECT v.id, CASE WHEN v.n % 10 = 0 THEN 'another' ELSE 'default' END, 'bulk-' || v.n % ${jobs},
      to_char(v.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || '-' || v.n, v.at, 'rule', v.status,
      CASE WHEN v.status = 'skipped' THEN CASE WHEN v.kind = 97 THEN 'duplicate' ELSE 'held' END END, 'bulk-' || v.n % ${jobs},
      v.n, v.n + 1000000000, CASE WHEN v.began THEN v.n END, 1, CASE WHEN v.began THEN 1 END, 3, 'rerun',
      CASE WHEN v.began THEN true END, 15000, 15000, 'null', '{"deleted": 201}',
      CASE WHEN v.status = 'failed' THEN '{"name": "Error", "message": "no"}'::jsonb END,
      v.at, v.at, CASE WHEN v.began THEN v.at END, v.at + interval '1 s', v.at + interval '1 s', '{log}', v.at + interval '31 s'
    FROM (
      SELECT g AS n, g / 7 % 100 AS kind, c.at, s.status, s.status NOT IN ('skipped', 'missed') AS began,
        (lpad(to_hex((extract(epoch FROM c.at) * 1000)::bigint), 12, '0') || '7000' || '8000' || lpad(to_hex(g), 12, '0'))::uuid AS id
      FROM generate_series(1, ${rows}) g
      CROSS JOIN LATERAL (SELECT now() - interval '1 day' * ${days} * (1 - g::float8 / ${rows}) AS at) c
      CROSS JOIN LATERAL (SELECT CASE WHEN g / 7 % 100 < 82 THEN 'succeeded' WHEN g / 7 % 100 < 92 THEN 'failed'
        WHEN g / 7 % 100 < 98 THEN 'skipped' WHEN g / 7 % 100 = 98 THEN 'missed' ELSE 'cancelled' END AS status) s) v`;
}
