import { v7 as uuidV7 } from 'uuid';
import type { Job } from './job.ts';
import { Path, type Claim, type Coordinator } from './path/steps.ts';
import type { Delivery } from './path/trigger.ts';
import { isOver, type RunRecord } from './run.ts';

/**
 * Takes one delivery to its outcome, and answers the record of it as it stands in the database. The whole path:
 *
 *     claim    T0: record the start                        one round trip to PostgreSQL
 *     hold     T1: the lock, its heartbeat, its countdown    for both
 *     perform  the job's function, with tx, signal, fence
 *     record   the outcome, committed with what was written  one round trip
 *     publish  after commit, from the stored record; what fails stays for later
 *
 * @param timeLeftMs until the invocation is killed
 * @throws {PostgresError} where nothing was run: no start could be recorded, or its session was lost before it could
 *   enter, and the sweep will settle it
 * @throws {OutcomeUnknown} where the outcome could not be recorded: the sweep will settle it
 */
export async function coordinate(
  delivery: Delivery,
  timeLeftMs: number,
  coordinator: Coordinator,
): Promise<RunRecord> {
  const path = new Path(delivery, timeLeftMs, coordinator);
  const claim = await path.claim();
  try {
    const run = isOver(claim.run) ? claim.run : await underLock(path, claim);
    await path.publish(claim, run);
    await path.passOn(claim, run);
    return run;
  } finally {
    await claim.session.close();
  }
}

async function underLock(path: Path, claim: Claim): Promise<RunRecord> {
  const held = await path.hold(claim);
  try {
    const result = await path.perform(held);
    return await path.record(held, result);
  } finally {
    await held.lock.letGo();
  }
}

/**
 * Records a delivery that can't be run, since its event was not understood: failed, for good.
 * @throws {PostgresError} where it could not be recorded
 */
export async function refuse(
  event: RefusedEvent,
  timeLeftMs: number,
  coordinator: Coordinator,
): Promise<RunRecord> {
  const { job, error, deliveryId, now } = event;
  const delivery: Delivery = {
    job,
    slot: `refused:${deliveryId ?? uuidV7()}`, // which slot it was about is not known: it must stand in the way of none
    scheduledFor: now,
    slotGuessed: false,
    scheduledForGuessed: true,
    offSchedule: false,
    trigger: 'unknown',
    byHand: false,
    deliveryId,
    requestedBy: null,
    params: null,
  };
  const path = new Path(delivery, timeLeftMs, coordinator);
  const refused = await path.refuse(error);
  try {
    await path.publish(refused, refused.run);
    return refused.run;
  } finally {
    await refused.session.close();
  }
}

export interface RefusedEvent {
  readonly job: Job;
  readonly error: unknown;
  readonly deliveryId: string | null;
  readonly now: Date;
}

export type { Coordinator };
