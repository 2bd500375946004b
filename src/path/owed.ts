import { call, change, quoted } from '../postgres/call.ts';
import { toRecord } from '../postgres/record.ts';
import type { Session } from '../postgres/session.ts';
import type { RunRecord } from '../run.ts';
import type { RunRequest } from './trigger.ts';

/**
 * This module's secret: how owed slots follow each other. A debt is a run on record with `final: false`: a missed slot that
 * its job's policy wants, one that was turned away for a slot that caught up, one whose run went wrong and got no retry. A
 * job's debts are delivered one at a time, oldest first (`cronce.next_owed`): by the sweep, and then by each run of the job
 * as it ends, which asks for the next. Delivered all at once, all but one would find the lock held.
 */

/**
 * So many invocations may start each other; then the sweep begins the next chain. Lambda drops an invocation more than 16
 * deep in one chain of functions that invoke each other (docs: "recursive loop detection"), and others may stand in
 * front of ours: the sweep, or the function that has started a run by hand.
 */
export const longestChain = 10;

/** A slot whose run went wrong, or that was asked for and has not come, is delivered again after so long, ms. */
export const patienceMs = 600_000;

/**
 * Whether the end of this run may let the next owed slot in: it ran, or came to nothing for good. One that was held or
 * paused would only be asked for again. The run of an owed slot always asks: what it has turned away is owed since.
 */
export function passesOn({ trigger, skipReason }: RunRecord, owes: boolean): boolean {
  if (skipReason === 'held' || skipReason === 'paused') return false;
  return trigger === 'sweep' || (owes && skipReason === null);
}

interface Owing {
  readonly deployment: string;
  readonly job: string;
  /** Debts of runs that ended longer ago are none any more, ms. */
  readonly retentionMs: number | null;
  /** A virtual clock's time; absent, the server's clock counts. */
  readonly now?: Date;
}

/** The next slot to be delivered, which counts as asked for from now on. */
export async function nextOwed(session: Session, owing: Owing): Promise<RunRecord | null> {
  const { deployment, job, retentionMs, now } = owing;
  const at = { sql: now ? quoted(session, now) : 'clock_timestamp()' };
  const since = retentionMs === null ? null : { sql: `${at.sql} - ${retentionMs} * interval '1 ms'` };
  const asked = call(session, 'next_owed', deployment, job, patienceMs, at, since);
  const found = await change<RunRecord | null>(session, asked);
  return found && toRecord(found);
}

/** Takes that back. */
export async function notAsked(session: Session, { id }: RunRecord): Promise<void> {
  await change(session, call(session, 'not_asked', id));
}

/**
 * Hands the slot over; where that can't be done, it counts as not asked for.
 * @throws what `deliver` throws
 */
export async function askFor(
  debt: RunRecord,
  chain: number,
  deliver: (request: RunRequest) => Promise<void>,
  takeBack: () => Promise<unknown>,
): Promise<void> {
  try {
    await deliver(requestFor(debt, chain));
  } catch (error) {
    await takeBack();
    throw error;
  }
}

/** As the slot was delivered first: what it is about must be the same in each of its runs. */
function requestFor(debt: RunRecord, chain: number): RunRequest {
  const { job, slot, scheduledFor, requestedBy, requestReason: reason, params } = debt;
  const due = slot.startsWith('manual:') ? { scheduledFor } : {}; // any other slot is its time
  const asked = { ...(requestedBy === null ? {} : { requestedBy }), ...(reason === null ? {} : { reason }) };
  return { cronce: { job, trigger: 'sweep', slot, ...due, ...asked, params, chain } };
}
