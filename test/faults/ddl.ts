/** Migrations, and other work on our tables, beside all that a coordinator does: nothing may wait behind anything. */
import { setTimeout as delay } from 'node:timers/promises';
import type { Step } from './orders.ts';
import { count, demandSuccess, type Row } from './rows.ts';
import { described, playRow, type Prepared, type Trial } from './trial.ts';

const longestWaitMs = 2_000;
const longWork: readonly Step[] = [
  count,
  { do: 'fenced', rounds: 6, everyMs: 20, openMs: 250 },
  { do: 'everything', rounds: 20, everyMs: 20 },
];
const waitedFor: readonly Step[] = [count, { do: 'write', rounds: 1, everyMs: 0 }];

const changes: readonly [string[], ...string[][]] = [
  ['ALTER TABLE cronce.run ADD COLUMN faults_a integer', 'ALTER TABLE cronce.run DROP COLUMN faults_a'],
  ['VACUUM FULL cronce.run'],
  ['ALTER TABLE cronce.lock ADD COLUMN faults_b text', 'ALTER TABLE cronce.lock DROP COLUMN faults_b'],
  ['REINDEX TABLE cronce.run', 'VACUUM FULL cronce.lock'],
  ['CREATE INDEX faults_c ON cronce.run (received_at)', 'DROP INDEX cronce.faults_c'],
];

export const ddl: Row = (ground, trials) =>
  playRow(ground, { row: 'ddl', trials, lanes: 1 }, async (trial) => {
    const victim = await trial.begin(longWork);
    await trial.begun(victim.delivery);
    const waiter = await trial.prepare();
    const waiting = trial.deliver(waiter, waitedFor, { waitMs: 20_000 });
    const over = new AbortController();
    const stream = streamOfClaims(trial, await trial.prepare(), over.signal);
    for (const change of trial.turn(changes)) {
      await delay(trial.between(50, 300));
      await inTime(trial, 'change', change, () => trial.field.db.query(change));
    }
    demandSuccess(trial, await victim.delivery.ended());
    demandSuccess(trial, await waiting.ended());
    over.abort();
    await stream;
    const refused = victim.delivery.events.find(({ kind }) => kind === 'refused');
    if (refused) trial.violate(`beside a change of the tables: ${JSON.stringify(refused)}`);
  });

/** Deliveries that are turned away, one after the other, each on record. */
async function streamOfClaims(trial: Trial, by: Prepared, over: AbortSignal): Promise<void> {
  while (!over.aborted) {
    await inTime(trial, 'claim', 'a claim', async () => {
      const ended = await trial.deliver({ ...by, slot: trial.newSlot() }, []).ended();
      const isRecorded =
        ended.kind === 'told' && (ended.run.skipReason === 'held' || ended.run.status === 'succeeded');
      if (!isRecorded) trial.violate(`beside a change of the tables: ${described(ended)}`);
    });
    await delay(20);
  }
}

async function inTime(trial: Trial, name: string, what: string, act: () => Promise<unknown>): Promise<void> {
  const from = performance.now();
  await act();
  const ms = performance.now() - from;
  trial.time(name, ms);
  if (ms > longestWaitMs) trial.violate(`${what} took ${Math.round(ms)} ms`);
}
