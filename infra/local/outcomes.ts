/** What became of deliveries, as it happens: read from the records, so that nothing escapes that anyone started. */
import { setTimeout as sleep } from 'node:timers/promises';
import { styleText } from 'node:util';
import pg from 'pg';
import { toRecord } from '../../src/postgres/record.ts';
import type { RunRecord } from '../../src/run.ts';
import { visible } from '../terminal.ts';

const pollMs = 250;
/** On a busy machine a delivery takes a second; what takes longer was late on its way. */
const lateFromMs = 2_000;

/**
 * Yields each run that ends from now on, until aborted; goes on after the database was away. Looks back a minute each
 * time, by the server's clock: a record is seen only some time after the moment that stands in it as its end.
 */
export async function* outcomes(databaseUrl: string, signal: AbortSignal): AsyncGenerator<RunRecord, void> {
  const pool = new pg.Pool({ connectionString: databaseUrl, max: 1, application_name: 'cronce:local' });
  pool.on('error', () => undefined);
  try {
    let known = new Set((await endedOfLate(pool)).map(({ id }) => id));
    while (await sleep(pollMs, true, { signal }).catch(() => false)) {
      const late = await endedOfLate(pool).catch(() => undefined);
      if (late === undefined) continue;
      yield* late.filter(({ id }) => !known.has(id));
      known = new Set(late.map(({ id }) => id));
    }
  } finally {
    await pool.end();
  }
}

async function endedOfLate(pool: pg.Pool): Promise<RunRecord[]> {
  const { rows } = await pool.query<{ run: RunRecord }>(
    `SELECT cronce.record(r) AS run FROM cronce.run r
     WHERE r.finished_at >= clock_timestamp() - interval '1 minute' ORDER BY r.finished_at, r.id`,
  );
  return rows.map(({ run }) => toRecord(run));
}

const styles = {
  succeeded: 'green',
  skipped: 'gray',
  running: 'gray',
  cancelled: 'yellow',
  missed: 'yellow',
  failed: 'red',
  timed_out: 'red',
  lost: 'red',
} as const satisfies Record<RunRecord['status'], Parameters<typeof styleText>[0]>;

/** One line that no record can colour or break: time, job, slot, outcome, reason, attempt, duration, and what it answered or why it failed. */
export function outcomeLine(
  run: RunRecord,
  { colour, jobWidth }: { colour: boolean; jobWidth: number },
): string {
  const outcome = [run.status, run.skipReason].filter(Boolean).join(' ').padEnd(17);
  const tookMs = Date.parse(run.finishedAt ?? run.receivedAt) - Date.parse(run.startedAt ?? run.receivedAt);
  const columns = [
    new Date(run.finishedAt ?? run.receivedAt).toISOString().slice(11, 19),
    visible(run.job).padEnd(jobWidth),
    visible(run.slot).padEnd(20),
    colour ? styleText(styles[run.status], outcome) : outcome,
    attemptOf(run).padEnd(11),
    `${tookMs} ms`.padStart(9),
    detailOf(run),
  ];
  return columns.join('  ').trimEnd();
}

function attemptOf({ attempt, maxAttempts }: RunRecord): string {
  return attempt === null ? '' : `attempt ${attempt}/${maxAttempts ?? '?'}`;
}

function detailOf(run: RunRecord): string {
  const { status, output, error, blockedBy } = run;
  const text =
    error?.message ??
    (status === 'succeeded' ? JSON.stringify(output) : blockedBy ? `by run ${blockedBy}` : '');
  const line = [wayOf(run), text].filter(Boolean).join(', ').replace(/\s+/g, ' ');
  return visible(line.length > 80 ? `${line.slice(0, 79)}…` : line);
}

/** How it came, where that is out of the ordinary. */
function wayOf({ trigger, status, receivedAt, scheduledFor }: RunRecord): string {
  if (trigger === 'sweep') return status === 'missed' ? '' : 'delivered by the sweep';
  const lateMs = Date.parse(receivedAt) - Date.parse(scheduledFor);
  return lateMs >= lateFromMs && trigger !== 'manual' ? `${Math.round(lateMs / 1_000)} s late` : '';
}
