/** What the schema decides by a predicate of its own, each with its truth table. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { freshDatabase, type TestDatabase } from '../support/database.ts';

let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

/** A predicate about a run's row, of which only some columns count. */
async function holds(predicate: string, row: Readonly<Record<string, unknown>>): Promise<unknown> {
  const [found] = await db.query(
    `SELECT cronce.${predicate} AS answer FROM jsonb_populate_record(NULL::cronce.run, $1) r`,
    [JSON.stringify(row)],
  );
  return found?.['answer'];
}

describe('is_final', () => {
  const outcomes = ['succeeded', 'failed', 'timed_out', 'lost', 'cancelled'] as const;
  const asked = [null, '2026-11-29T12:00:00Z'] as const;
  const permanents = [null, false, true] as const;
  const policies = ['rerun', 'hold'] as const;
  const attempts = [1, 2, 3, 4] as const; // of three

  /** Each line is a reason for itself; where none is met, another attempt follows. */
  const reasons: Readonly<Record<string, (row: Row) => boolean>> = {
    'the slot has its success': ({ outcome }) => outcome === 'succeeded',
    'somebody wanted it to end': ({ outcome, cancelled }) => outcome === 'cancelled' || cancelled !== null,
    'another attempt would be no better': ({ permanent }) => permanent === true,
    'a person is to look at it': ({ outcome, policy }) => outcome === 'lost' && policy === 'hold',
    'no attempt is left': ({ attempt }) => attempt >= 3,
  };

  interface Row {
    readonly outcome: (typeof outcomes)[number];
    readonly cancelled: (typeof asked)[number];
    readonly permanent: (typeof permanents)[number];
    readonly policy: (typeof policies)[number];
    readonly attempt: (typeof attempts)[number];
  }

  const rows = outcomes.flatMap((outcome) =>
    asked.flatMap((cancelled) =>
      permanents.flatMap((permanent) =>
        policies.flatMap((policy) =>
          attempts.map((attempt): Row => ({ outcome, cancelled, permanent, policy, attempt })),
        ),
      ),
    ),
  );

  it('says so where a reason is met, and where none is, not: all 240 rows', async () => {
    const wrong: unknown[] = [];
    for (const row of rows) {
      const met = Object.keys(reasons).filter((reason) => reasons[reason]?.(row));
      const found = await holds(`is_final(r, '${row.outcome}', ${String(row.permanent)})`, {
        cancel_requested_at: row.cancelled,
        after_lost: row.policy,
        attempt: row.attempt,
        max_attempts: 3,
      });
      if (found !== met.length > 0) wrong.push({ row, met, found });
    }
    expect([rows.length, wrong]).toEqual([240, []]);
  });
});

describe('came_by_itself', () => {
  const triggers = {
    rule: true,
    scheduler: true,
    unknown: true,
    local: true,
    sweep: false,
    manual: false,
  } as const;
  const slots = { '2026-11-29T12:00:00Z': true, 'refused:1': false } as const;
  const reasons = { held: true, duplicate: true, too_late: true, paused: true, off_schedule: false } as const;
  const rows = Object.entries(triggers).flatMap(([trigger, byTrigger]) =>
    Object.entries(slots).flatMap(([slot, bySlot]) =>
      [['', true] as const, ...Object.entries(reasons)].map(([reason, byReason]) => ({
        row: { trigger, slot, skip_reason: reason || null },
        expected: byTrigger && bySlot && byReason,
      })),
    ),
  );

  it('needs a schedule’s delivery, of a slot that was understood, at a time of the schedule: all 72 rows', async () => {
    const wrong: unknown[] = [];
    for (const { row, expected } of rows)
      if ((await holds('came_by_itself(r)', row)) !== expected) wrong.push({ row, expected });
    expect([rows.length, wrong]).toEqual([72, []]);
  });
});

describe('is_backend', () => {
  it('knows a client’s own backend, and none that is not there', async () => {
    const [row] = await db.query(
      `SELECT cronce.is_backend(pg_backend_pid()) AS own, cronce.is_backend(0) AS none, cronce.is_backend(NULL) AS unknown`,
    );
    expect(row).toEqual({ own: true, none: false, unknown: false });
  });
});
