/**
 * Rows made by hand, and sessions that hold what a test says: for truth tables of the SQL functions, called by themselves.
 *
 *     const s = stage(db);
 *     const id = await s.run({ attempt: 3 });
 *     await s.ask('settle($1)', { id, status: 'failed' });
 */
import pg from 'pg';
import { v7 as uuidV7 } from 'uuid';
import { schemaVersion } from '../../src/path/claim.ts';
import { lockKey } from '../../src/lock-name.ts';
import type { TestDatabase } from './database.ts';

export const noon = '2026-11-29T12:00:00Z';

export type Columns = Readonly<Record<string, unknown>> & { readonly status?: string };
export type Row = Record<string, unknown>;

/** A backend's number that none has. */
export const nobody = 2_000_000_000;

/** A time so many ms from now; before it where negative. */
export function fromNow(ms: number): string {
  return new Date(Date.now() + ms).toISOString();
}

/** The same as a column of a row by hand, reckoned when the row is laid: a table of rows is written down long before. */
export function after(ms: number): string {
  return `now ${ms} ms`;
}

function laid(value: unknown): unknown {
  const [, ms] = (typeof value === 'string' && /^now (-?\d+) ms$/.exec(value)) || [];
  return ms === undefined ? value : fromNow(Number(ms));
}

let stages = 0;

/** A job of its own, with the lock and the guard of its noon slot. Each test takes one: none sees another's rows. */
export function stage(db: TestDatabase) {
  const job = `job-${++stages}`;
  const [key, guard] = [lockKey(job).toString(), lockKey(`${job}@${noon}`).toString()];
  const insert = async (table: string, columns: Columns, onConflict = '') => {
    const names = Object.keys(columns).join(', ');
    await db.query(
      `INSERT INTO cronce.${table} (${names})
       SELECT ${names} FROM jsonb_populate_record(NULL::cronce.${table}, $1) ${onConflict}`,
      [
        JSON.stringify(
          Object.fromEntries(Object.entries(columns).map(([name, value]) => [name, laid(value)])),
        ),
      ],
    );
  };
  return {
    job,
    key,
    guard,
    insert,
    /** The lock's last fence, 1, and whose it is. */
    async lock(columns: Columns) {
      await insert(
        'lock',
        { key, name: job, fence: 1, ...columns },
        'ON CONFLICT (key) DO UPDATE SET fence = excluded.fence, run_id = excluded.run_id, of_slot = excluded.of_slot',
      );
    },
    /** One that runs, with the lock's last fence and a backend that is gone, unless told otherwise. */
    async run(columns: Columns = {}): Promise<string> {
      const id = uuidV7();
      const made = { ...runOf({ id, job, key, guard }, columns.status ?? 'running'), ...columns };
      await insert('run', made);
      if (made['status'] === 'running')
        await this.lock({ key: made['lock_key'], fence: made['fence'], run_id: id, of_slot: false });
      return id;
    },
    async row(id: string): Promise<Row> {
      const [row] = await db.query(
        `SELECT r.*, CASE WHEN delay_until = 'infinity' THEN 'unbegun' WHEN delay_until IS NULL THEN 'none'
                     ELSE round(extract(epoch FROM delay_until - clock_timestamp()))::text END AS delay
         FROM cronce.run r WHERE id = $1`,
        [id],
      );
      return row ?? {};
    },
    /** What `cronce.<call>` answers. */
    async ask<T = Row>(call: string, ...values: readonly unknown[]): Promise<T> {
      return (await db.query(`SELECT cronce.${call} AS answer`, values))[0]?.['answer'] as T;
    },
    /** The same of the whole row of a run, for functions that take one: it is `r`. */
    async askOf<T = Row>(id: string, call: string): Promise<T> {
      const [row] = await db.query(`SELECT cronce.${call} AS answer FROM cronce.run r WHERE r.id = $1`, [id]);
      return row?.['answer'] as T;
    },
    /** What `cronce.claim` takes. */
    claim(changes: { run?: Columns; lock?: Columns; policy?: Columns } & Columns = {}) {
      const { run, lock, policy, ...others } = changes;
      return {
        ...{ schema: schemaVersion, deployment: 'default', now: null, again: false, gapMs: 5_000 },
        ...{ leaseMs: 15_000, lockDelayMs: 15_000, timeLeftMs: 600_000, timeoutMs: 60_000, ...others },
        run: {
          ...{ id: uuidV7(), job, slot: noon, scheduledFor: noon, slotGuessed: false, trigger: 'rule' },
          ...{ deliveryId: null, requestedBy: null, params: null, ...run },
        },
        lock: { name: job, keys: [key], guard, waitMs: 0, patienceMs: 0, ...lock },
        policy: {
          ...{ byHand: false, maxAttempts: 3, afterLost: 'rerun', startDeadlineMs: null, replace: false },
          ...policy,
        },
      };
    },
  };
}

export type Stage = ReturnType<typeof stage>;

function runOf(of: { id: string; job: string; key: string; guard: string }, status: string): Row {
  const now = fromNow(0);
  const started = status !== 'skipped' && status !== 'missed';
  return {
    ...{
      id: of.id,
      job: of.job,
      slot: noon,
      scheduled_for: noon,
      trigger: 'rule',
      status,
      lock_name: of.job,
    },
    ...{ lock_key: of.key, guard_key: of.guard, received_at: now, claimed_at: now, after_lost: 'rerun' },
    ...(status === 'skipped' ? { skip_reason: 'held' } : {}),
    ...(status === 'running' ? {} : { finished_at: now }),
    ...(started
      ? {
          ...{ fence: 1, attempt: 1, max_attempts: 3, lease_ms: 15_000, lock_delay_ms: 20_000 },
          ...{ started_at: now, backend_pid: nobody },
        }
      : {}),
  };
}

/** A session of the ordinary role, in an open transaction that holds these locks. */
export interface Holder {
  readonly pid: number;
  readonly session: pg.Client;
  /** Whether the server still has it. */
  isThere(): Promise<boolean>;
  end(): Promise<void>;
}

export async function holder(
  db: TestDatabase,
  { keys = [], shared = [], url = db.url }: { keys?: string[]; shared?: string[]; url?: string } = {},
): Promise<Holder> {
  const session = new pg.Client({ connectionString: url });
  session.on('error', () => undefined);
  await session.connect();
  await session.query('BEGIN ISOLATION LEVEL READ COMMITTED');
  await session.query(`SET LOCAL idle_in_transaction_session_timeout = 0`);
  for (const key of keys) await session.query('SELECT pg_advisory_xact_lock($1)', [key]);
  for (const key of shared) await session.query('SELECT pg_advisory_xact_lock_shared($1)', [key]);
  const { processID: pid } = session as unknown as { processID: number };
  return {
    pid,
    session,
    isThere: async () =>
      (await db.query('SELECT 1 FROM pg_stat_activity WHERE pid = $1', [pid])).length === 1,
    end: async () => session.end().catch(() => undefined),
  };
}

/** With a holder, which ends with the body. */
export async function holding<T>(
  db: TestDatabase,
  locks: { keys?: string[]; shared?: string[]; url?: string },
  body: (by: Holder) => Promise<T>,
): Promise<T> {
  const by = await holder(db, locks);
  try {
    return await body(by);
  } finally {
    await by.end();
  }
}

/** The advisory locks of a session, and the tables of ours that it has locked. */
export async function locksOf(
  db: TestDatabase,
  { pid }: Holder,
): Promise<{ keys: string[]; tables: string[] }> {
  const keys = await db.query('SELECT key::text FROM cronce.held_keys() WHERE pid = $1', [pid]);
  const tables = await db.query(
    `SELECT DISTINCT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
     JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE l.pid = $1 AND n.nspname = 'cronce' AND l.database <> 0`,
    [pid],
  );
  return { keys: keys.map(({ key }) => String(key)), tables: tables.map(({ relname }) => String(relname)) };
}
