/** The rows of the campaign in which one holder is broken at a time, and what must hold for each. */
import { setTimeout as delay } from 'node:timers/promises';
import type { StopReason, Status } from '../../src/run.ts';
import type { Ended } from './crew.ts';
import type { Ground } from './field.ts';
import type { Step, WorkerEvent } from './orders.ts';
import {
  described,
  leaseMs,
  playRow,
  slackMs,
  type Prepared,
  type RowResult,
  type Trial,
  type Victim,
} from './trial.ts';
import type { Way } from './ways.ts';

/** One row: so many trials on this ground, by this way to the server. */
export type Row = (ground: Ground, trials: number, way?: Way['name']) => Promise<RowResult>;

export const count: Step = { do: 'count', pauseMs: 5 };
export const brief: readonly Step[] = [count, { do: 'write', rounds: 3, everyMs: 1 }];
const rounds = (n: number, everyMs = 30): Step => ({ do: 'everything', rounds: n, everyMs });

export function named(row: string, way: Way['name'] = 'direct'): { row: string; way: Way['name'] } {
  return { row: way === 'direct' ? row : `${way}: ${row}`, way };
}

// ── SIGKILL of the holder ─────────────────────────────────────────────────────────────────────────────────────

const steady: readonly Step[] = [
  count,
  { do: 'write', rounds: 4, everyMs: 10 },
  { do: 'statement', ms: 40 },
  { do: 'effects', rounds: 2, everyMs: 5 },
  { do: 'fenced', rounds: 1, everyMs: 0, openMs: 20 },
];
/** About as long as all that takes, once connected. */
const pathMs = 220;

/** A moment of the path at which it is killed. */
interface Moment {
  readonly work?: readonly Step[];
  readonly comes: (trial: Trial, victim: Victim) => Promise<unknown>;
}

const someTime: Moment = { comes: (trial) => delay(trial.between(0, pathMs)) };
const underWay = (query: string): Moment => ({
  comes: (_, { road }) => road.proxy.waitForQuery(query, { hold: true }),
});
const answeredUnheard = (query: string): Moment => ({
  comes: (_, { road }) => road.proxy.swallowReplyTo(query),
});
const asked = (query: string): Moment => ({ comes: (_, { road }) => road.proxy.waitForQuery(query) });
/** At a random time in every second trial, with a certain message in a certain state in the others. */
const moments: readonly [Moment, ...Moment[]] = [
  someTime,
  ...[
    underWay('cronce.claim'),
    answeredUnheard('cronce.claim'),
    asked('pg_sleep'),
    // The server must notice although it is busy.
    { ...asked('pg_sleep'), work: [count, { do: 'statement', ms: 4_000 } as const] },
    asked('faults.fenced'),
    underWay('RELEASE SAVEPOINT'),
    answeredUnheard('RELEASE SAVEPOINT'),
  ].flatMap((moment) => [moment, someTime]),
];
const freeAfterKillMs = 1_000;

export const kill: Row = (ground, trials, way) =>
  playRow(ground, { ...named('kill', way), trials, lanes: 3 }, async (trial) => {
    const { comes, work = steady } = trial.turn(moments);
    const victim = await trial.begin(work);
    await Promise.race([comes(trial, victim), victim.delivery.ended()]);
    if (victim.delivery.isTold) trial.giveUp('the run was over before the kill');
    const killedAt = await victim.worker.kill();
    // What it had sent is still on its way, as it would be in a network.
    victim.road.proxy.resume();
    const { freeAt } = await trial.free(freeAfterKillMs);
    trial.time('release', freeAt - killedAt);
    const next = await trial.next(victim.slot, brief, freeAfterKillMs);
    const heard = await next.first('begun', 'told', 'threw');
    if (heard.kind === 'begun') await trial.recovered(next, killedAt, freeAt);
    await demandSuccessOrDuplicate(trial, await next.ended());
    await trial.settle();
    await demandKilledRunEnded(trial, victim);
  });

async function demandKilledRunEnded(trial: Trial, { delivery, slot }: Victim): Promise<void> {
  const begun = delivery.events.find(({ kind }) => kind === 'begun');
  const status = begun?.kind === 'begun' ? await trial.statusOf(begun.runId) : 'lost';
  if (status !== 'lost' && status !== 'succeeded')
    trial.violate(`the killed run of ${slot} is ${String(status)}`);
}

/** Whether the next delivery of a slot ran, or the first had succeeded after all. */
export async function demandSuccessOrDuplicate(trial: Trial, ended: Ended): Promise<void> {
  if (ended.kind === 'told' && ended.run.status === 'succeeded') return;
  const first =
    ended.kind === 'told' &&
    ended.run.skipReason === 'duplicate' &&
    (await trial.statusOf(ended.run.blockedBy ?? ''));
  if (first === 'succeeded') return;
  trial.giveUpIfStarved(ended);
  trial.violate(`the next delivery did not run: ${described(ended)}`);
}

// ── SIGSTOP of the holder ─────────────────────────────────────────────────────────────────────────────────────

/** What it is about when it freezes, and goes on with when it thaws. */
const habits: readonly [Step, ...Step[]] = [
  rounds(40),
  { do: 'effects', rounds: 90, everyMs: 15 },
  { do: 'fenced', rounds: 12, everyMs: 5, openMs: 100 },
];

export const freeze: Row = (ground, trials, way) =>
  playRow(ground, { ...named('freeze', way), trials, lanes: 6 }, async (trial) => {
    const habit = trial.turn(habits);
    const victim = await trial.begin([count, habit]);
    const begun = await trial.begun(victim.delivery);
    await stepBegun(victim, habit.do);
    await delay(trial.between(0, 500));
    const frozenAt = victim.worker.freeze();
    // Frozen in a fenced transaction it has both places of a pool of two, and others wait there for their turn.
    if (trial.field.way.name !== 'pgbouncer') await demandHeld(trial, victim, begun.runId);
    const { freeAt } = await trial.free(leaseMs + slackMs);
    trial.time('release', freeAt - frozenAt);
    const next = await trial.next(victim.slot, [count, rounds(15)], leaseMs + slackMs);
    await trial.recovered(next, frozenAt, freeAt);
    // While its successor works, or after that.
    await (trial.random() < 0.7 ? delay(trial.between(0, 300)) : next.ended());
    victim.worker.thaw();
    demandSuccess(trial, await next.ended());
    await demandLost(trial, victim, begun.runId);
  });

async function demandHeld(trial: Trial, { slot }: Victim, holder: string): Promise<void> {
  const ended = await (await trial.deliverClear(slot, brief)).ended();
  const held = ended.kind === 'told' && ended.run.skipReason === 'held' && ended.run.blockedBy === holder;
  if (!held) trial.violate(`a delivery beside the frozen holder was not told so: ${described(ended)}`);
}

/**
 * The broken run ends as lost, by whoever records it, and its path says so or that it does not know. To be asked when
 * no other run holds the lock any more.
 */
export async function demandLost(trial: Trial, { delivery }: Victim, runId: string): Promise<void> {
  const ended = await delivery.ended();
  // Long enough for whatever its work still tries. Some of it waits for an answer that never comes.
  await Promise.race([delivery.first('left'), delay(leaseMs)]);
  const knows = ended.kind === 'told' && ended.run.status === 'lost';
  const knowsNot = ended.kind === 'threw' && ended.error.name === 'OutcomeUnknown';
  if (!knows && !knowsNot) trial.violate(`the broken run was told as ${described(ended)}`);
  await trial.settle();
  const status = await trial.statusOf(runId);
  if (status !== 'lost') trial.violate(`the broken run is stored as ${String(status)}`);
}

export function demandSuccess(trial: Trial, ended: Ended): void {
  trial.giveUpIfStarved(ended);
  if (ended.kind !== 'told' || ended.run.status !== 'succeeded')
    trial.violate(`the next delivery did not succeed: ${described(ended)}`);
}

// ── Partition without FIN ─────────────────────────────────────────────────────────────────────────────────────

export const partition: Row = (ground, trials, way) =>
  playRow(ground, { ...named('partition', way), trials, lanes: 6 }, async (trial) => {
    const { statementMs, victim } = await beginIdleOrMidStatement(trial);
    const begun = await trial.begun(victim.delivery);
    await delay(trial.between(0, 400));
    // Both ways, or only the server's answers.
    const closing = trial.random() < 0.75 ? 'unheard' : 'heard';
    if (closing === 'unheard') victim.road.proxy.partition();
    else victim.road.proxy.stall('toClient');
    const cutAt = Date.now();
    await demandStoppedBeforeFree(trial, victim, closing, statementMs + leaseMs + slackMs);
    const next = await trial.next(victim.slot, brief, leaseMs + slackMs);
    await trial.recovered(next, cutAt);
    if (trial.random() < 0.5) await victim.road.proxy.heal();
    demandSuccess(trial, await next.ended());
    await demandLost(trial, victim, begun.runId);
  });

/** With effects going on beside an idle transaction, or inside a statement that outlasts the fault or does not. */
async function beginIdleOrMidStatement(trial: Trial): Promise<{ statementMs: number; victim: Victim }> {
  const idle = trial.turn([true, false]);
  const statementMs = idle ? 0 : Math.round(trial.between(500, 2_500));
  const work: Step = idle ? { do: 'effects', rounds: 60, everyMs: 50 } : { do: 'statement', ms: statementMs };
  const victim = await trial.begin([count, work]);
  if (!idle) await Promise.race([victim.road.proxy.waitForQuery('pg_sleep'), victim.delivery.ended()]);
  return { statementMs, victim };
}

/**
 * The one thing that a lock must give: who no longer has it has been told. The lead is by how much; there is none
 * where the server hears of the holder's closing its connection, which it does as soon as it is told.
 */
export async function demandStoppedBeforeFree(
  trial: Trial,
  { delivery }: Victim,
  closing: 'heard' | 'unheard',
  withinMs: number,
  ofLeaseMs = leaseMs,
): Promise<void> {
  const [stopped, { heldAt, freeAt }] = await Promise.all([delivery.first('stopped'), trial.free(withinMs)]);
  if (stopped.reason !== 'lock_lost') trial.violate(`the work was stopped for ${stopped.reason}`);
  const inTime = stopped.at <= (closing === 'heard' ? freeAt : heldAt);
  if (inTime && closing === 'unheard') trial.time('lead', freeAt - stopped.at);
  if (inTime) return;
  // A process that the machine did not let run is the row `block`.
  if (stopped.lagMs > ofLeaseMs / 8) trial.giveUp(`the holder was starved for ${stopped.lagMs} ms`);
  trial.violate(`the signal came ${Math.round(stopped.at - freeAt)} ms after the lock was free`);
}

// ── Event loop blocked for longer than the lease ──────────────────────────────────────────────────────────────

const blocks: readonly [Step[], ...Step[][]] = [
  [{ do: 'block', ms: 2_800 }],
  [
    { do: 'block', ms: 2_800 },
    { do: 'effects', rounds: 5, everyMs: 10 },
  ],
  [{ do: 'block', ms: 2_800 }, rounds(5)],
  [{ do: 'block', ms: 2_800, in: 'statement' }, rounds(5)],
  [{ do: 'block', ms: 2_800, in: 'fenced' }, rounds(5)],
];

export const block: Row = (ground, trials, way) =>
  playRow(ground, { ...named('block', way), trials, lanes: 2 }, async (trial) => {
    const victim = await trial.begin([count, { do: 'write', rounds: 1, everyMs: 0 }, ...trial.turn(blocks)]);
    const begun = await trial.begun(victim.delivery);
    const blockedAt = await stepBegun(victim, 'block');
    const { freeAt } = await trial.free(leaseMs + slackMs);
    trial.time('release', freeAt - blockedAt);
    const next = await trial.next(victim.slot, [count, rounds(10)], leaseMs + slackMs);
    await trial.recovered(next, blockedAt, freeAt);
    demandSuccess(trial, await next.ended());
    await demandLost(trial, victim, begun.runId);
    await demandNothingFenced(trial, begun.runId);
  });

export async function stepBegun({ delivery }: Victim, step: Step['do']): Promise<number> {
  const isIt = (event: WorkerEvent) => event.kind === 'step' && event.step === step;
  const heard = await delivery.firstWhere(
    (event) => isIt(event) || event.kind === 'told' || event.kind === 'threw',
  );
  if (!isIt(heard)) throw new Error(`the work never came to ${step}: ${JSON.stringify(delivery.events)}`);
  return heard.at;
}

async function demandNothingFenced(trial: Trial, runId: string): Promise<void> {
  const rows = await trial.field.db.query('SELECT 1 FROM faults.fenced WHERE run_id = $1', [runId]);
  if (rows.length > 0) trial.violate(`the blocked run committed ${rows.length} fenced rows`);
}

// ── Restart of the server ─────────────────────────────────────────────────────────────────────────────────────

/** In every second trial the holder is cut off from the server a moment before. */
export const restart: Row = (ground, trials, way) =>
  playRow(ground, { ...named('restart', way), trials, lanes: 1 }, async (trial) => {
    const cutOff = await trial.begin([count, { do: 'effects', rounds: 80, everyMs: 50 }]);
    const begun = await trial.begun(cutOff.delivery);
    await delay(trial.between(0, 300));
    const isCut = trial.turn([true, false]);
    if (isCut) cutOff.road.proxy.partition();
    await delay(trial.between(0, 300));
    const downAt = Date.now();
    await ground.server.restart(trial.turn(['fast', 'immediate', 'immediate', 'fast']));
    const next = await trial.next(cutOff.slot, brief, 4 * leaseMs);
    const againAt = await trial.recovered(next, downAt);
    const stopped = await cutOff.delivery.first('stopped');
    if (stopped.at >= againAt) trial.violate(`two worked for ${stopped.at - againAt} ms`);
    if (isCut) trial.time('lead', againAt - stopped.at);
    demandSuccess(trial, await next.ended());
    await demandLost(trial, cutOff, begun.runId);
  });

// ── Sessions and statements that an operator or a limit ends ─────────────────────────────────────────────────

interface Ending {
  readonly work: readonly Step[];
  readonly timeoutMs?: number;
  /** Where nothing is given, the work does it to itself. */
  readonly fault?: 'pg_terminate_backend' | 'pg_cancel_backend';
  readonly outcomes: readonly Status[];
  readonly stopped?: StopReason;
}

const long: Step = { do: 'statement', ms: 5_000 };
const swallowed: Step = { do: 'statement', ms: 5_000, swallow: true };
const endings: readonly [Ending, ...Ending[]] = [
  { work: [{ do: 'idle' }], fault: 'pg_terminate_backend', outcomes: ['lost'], stopped: 'lock_lost' },
  { work: [long], fault: 'pg_terminate_backend', outcomes: ['lost'], stopped: 'lock_lost' },
  { work: [long], fault: 'pg_cancel_backend', outcomes: ['failed'] },
  { work: [swallowed], fault: 'pg_cancel_backend', outcomes: ['failed'] },
  { work: [{ do: 'limit statements', ms: 150 }, long], outcomes: ['failed'] },
  { work: [{ do: 'limit statements', ms: 150 }, swallowed], outcomes: ['failed'] },
  { work: [long], timeoutMs: 300, outcomes: ['timed_out'], stopped: 'deadline' },
  // Nothing to cancel; but it may hit a heartbeat, and that fails the transaction.
  {
    work: [{ do: 'fenced', rounds: 1, everyMs: 0, openMs: 300 }],
    fault: 'pg_cancel_backend',
    outcomes: ['succeeded', 'failed'],
  },
];

export const endSession: Row = (ground, trials, way) =>
  playRow(ground, { ...named('end session', way), trials, lanes: 4 }, async (trial) => {
    const ending = trial.turn(endings);
    const victim = await trial.begin([count, ...ending.work], { timeoutMs: ending.timeoutMs ?? 30_000 });
    const begun = await trial.begun(victim.delivery);
    if (ending.fault) await endFromOutside(trial, victim, { ...ending, fault: ending.fault }, begun.runId);
    const faultAt = Date.now();
    const ended = await victim.delivery.ended();
    if (ending.fault) trial.time('outcome', Date.now() - faultAt);
    const right = ended.kind === 'told' && ending.outcomes.includes(ended.run.status);
    if (!right) trial.violate(`${JSON.stringify(ending)} ended as ${described(ended)}`);
    const stopped = victim.delivery.events.find(({ kind }) => kind === 'stopped');
    if ((stopped?.kind === 'stopped' ? stopped.reason : undefined) !== ending.stopped)
      trial.violate(`${JSON.stringify(ending)}: the signal did not say so`);
    const next = await trial.next(victim.slot, brief, freeAfterKillMs);
    await demandSuccessOrDuplicate(trial, await next.ended());
  });

async function endFromOutside(
  trial: Trial,
  victim: Victim,
  { work, fault }: Ending & { fault: string },
  runId: string,
): Promise<void> {
  await stepBegun(victim, work.at(-1)?.do ?? 'idle');
  const busy = work.at(-1)?.do === 'statement';
  const { db } = trial.field;
  const backend = `SELECT a.pid FROM cronce.run r JOIN pg_stat_activity a ON a.pid = r.backend_pid
                   WHERE r.id = $1 AND (NOT $2 OR a.query LIKE '%pg_sleep%')`;
  while ((await db.query(backend, [runId, busy])).length === 0) await delay(10);
  await delay(trial.between(0, 200));
  await db.query(`SELECT ${fault}(backend_pid) FROM cronce.run WHERE id = $1`, [runId]);
}

// ── A session that ends and whose holder is not told ──────────────────────────────────────────────────────────

/**
 * The lock goes to a successor while the holder can still vouch for it by its own count: no signal can be in time. What
 * it then does in fenced transactions, on connections that work, the fence alone keeps from being committed.
 */
export const fence: Row = (ground, trials, way) =>
  playRow(ground, { ...named('fence', way), trials, lanes: 3 }, async (trial) => {
    const victim = await trial.begin([count, { do: 'fenced', rounds: 60, everyMs: 30, openMs: 0 }]);
    const begun = await trial.begun(victim.delivery);
    await delay(trial.between(0, 300));
    // Between two of them: one that is cut off itself would wait for ever, and try nothing.
    await victim.road.proxy.waitForQuery('cronce.demand_fence');
    await delay(10);
    const lostAt = Date.now();
    victim.road.proxy.partition({ newConnections: 'accept', serverSide: 'dropped' });
    const next = await trial.next(victim.slot, [count, rounds(25)], leaseMs);
    await trial.recovered(next, lostAt);
    demandSuccess(trial, await next.ended());
    await demandLost(trial, victim, begun.runId);
    const refused = victim.delivery.events.some((event) => event.kind === 'refused' && event.at > lostAt);
    if (!refused) trial.giveUp('nothing fenced was tried after the loss');
  });

// ── Acknowledgement of COMMIT swallowed ───────────────────────────────────────────────────────────────────────

interface Loss {
  readonly work: readonly Step[];
  /** Resolves once the message, or the answer to it, is out of the holder's reach. */
  readonly lose: (victim: Victim) => Promise<unknown>;
  /** When a message that was only held up goes on: at last, if nothing is given, after the path has ended. */
  readonly lateByMs?: readonly [least: number, most: number];
}

const success = 'RELEASE SAVEPOINT';
const failure = 'ROLLBACK TO SAVEPOINT';
const losses: readonly [Loss, ...Loss[]] = [
  { work: brief, lose: ({ road }) => road.proxy.swallowReplyTo(success) },
  { work: [...brief, { do: 'throw' }], lose: ({ road }) => road.proxy.swallowReplyTo(failure) },
  {
    work: brief,
    lose: async ({ road }) => {
      await road.proxy.swallowReplyTo(success);
      road.proxy.partition();
    },
  },
  { work: brief, lose: ({ road }) => road.proxy.waitForQuery(success, { hold: true }) },
  // About when the holder gives it up.
  {
    work: brief,
    lose: ({ road }) => road.proxy.waitForQuery(success, { hold: true }),
    lateByMs: [1_350, 1_650],
  },
];

export const lostAcknowledgement: Row = (ground, trials, way) =>
  playRow(ground, { ...named('lost acknowledgement', way), trials, lanes: 5 }, async (trial) => {
    const { work, lose, lateByMs } = trial.turn(losses);
    const victim = await trial.begin(work);
    await Promise.race([lose(victim), victim.delivery.ended()]);
    if (victim.delivery.isTold) trial.giveUp('the run was over before its acknowledgement could be lost');
    const lostAt = Date.now();
    if (lateByMs) await delay(trial.between(...lateByMs));
    if (lateByMs) victim.road.proxy.resume();
    const ended = await victim.delivery.ended();
    trial.time('answer', Date.now() - lostAt);
    victim.road.proxy.resume();
    // That what it was told is what is stored, the audit asks; an error must at least say that it is unknown.
    if (ended.kind === 'threw' && ended.error.name !== 'OutcomeUnknown') trial.violate(described(ended));
    await trial.free(leaseMs + slackMs);
    await demandSuccessOrDuplicate(trial, await (await trial.next(victim.slot, brief, leaseMs)).ended());
  });

// ── The relay of the neon driver ──────────────────────────────────────────────────────────────────────────────

interface RelayFault {
  readonly do: (holder: Prepared) => Promise<void> | void;
  readonly at: 'start' | 'idle' | 'statement';
}

const kills = ({ road }: Prepared) => road.relay?.kill();
const stalls = ({ road }: Prepared) => road.relay?.stall();
const refuses = async ({ road }: Prepared) => road.relay?.stop();
const relayFaults: readonly [RelayFault, ...RelayFault[]] = [
  { do: kills, at: 'idle' },
  { do: stalls, at: 'idle' },
  { do: refuses, at: 'idle' },
  { do: refuses, at: 'start' },
  { do: kills, at: 'statement' },
  { do: stalls, at: 'statement' },
  { do: stalls, at: 'start' },
  { do: refuses, at: 'statement' },
];

export const relay: Row = (ground, trials) =>
  playRow(ground, { row: 'neon: relay', way: 'neon', trials, lanes: 5 }, async (trial) => {
    const fault = trial.turn(relayFaults);
    if (fault.at === 'start') return demandTypedRefusal(trial, fault);
    const work: Step = fault.at === 'idle' ? { do: 'idle' } : { do: 'statement', ms: 1_000 };
    const victim = await trial.begin([count, work]);
    const begun = await trial.begun(victim.delivery);
    if (fault.at === 'statement') await stepBegun(victim, 'statement');
    await delay(trial.between(0, 300));
    const faultAt = Date.now();
    await fault.do(victim);
    if (fault.do === stalls) await demandStoppedBeforeFree(trial, victim, 'heard', 1_000 + leaseMs + slackMs);
    else trial.time('notice', (await victim.delivery.first('stopped')).at - faultAt);
    const next = await trial.next(victim.slot, brief, 1_000 + leaseMs + slackMs);
    await trial.recovered(next, faultAt);
    if (trial.random() < 0.5) victim.road.relay?.resume();
    demandSuccess(trial, await next.ended());
    await demandLost(trial, victim, begun.runId);
  });

/** Where no connection can be had, the path says so with an error of ours. A DOM ErrorEvent is no Error. */
async function demandTypedRefusal(trial: Trial, fault: RelayFault): Promise<void> {
  const victim = await trial.prepare();
  await fault.do(victim);
  const ended = await trial.deliver(victim, brief).ended();
  const typed = ended.kind === 'threw' && ended.error.isError && ended.error.name === 'CannotConnect';
  if (!typed) trial.violate(`without a relay: ${JSON.stringify(ended)}`);
  demandSuccess(trial, await (await trial.next(victim.slot, brief, leaseMs)).ended());
}
