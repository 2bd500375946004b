/**
 * Holders whose session is ended by force while they can still vouch for their lock: cut off or blocked, they hear of it
 * too late or never. The lock is free at once; only the lock delay keeps their successor from working beside them.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { cancelRun } from '../../src/path/cancel.ts';
import { Session } from '../../src/postgres/session.ts';
import type { Status } from '../../src/run.ts';
import type { Delivery } from './crew.ts';
import type { Step } from './orders.ts';
import { brief, count, demandLost, demandSuccess, named, stepBegun, type Row } from './rows.ts';
import { leaseMs, playRow, slackMs, type Trial, type Victim } from './trial.ts';

interface Force {
  readonly outcome: Status;
  /** Ends the session. Answers the delivery that did so, where it is the one that then runs. */
  readonly strike: (trial: Trial, victim: Victim, runId: string) => Promise<Delivery | undefined>;
}

const successor: readonly Step[] = [count, { do: 'vouch', ms: 300 }];

const cancels: Force = {
  outcome: 'cancelled',
  async strike(trial, _, runId) {
    const target = { url: trial.field.db.url, driver: 'pg', connectTimeoutMs: 10_000 } as const;
    const session = await Session.open(target);
    await cancelRun(session, runId, { by: 'the campaign', graceMs: 0 }).finally(() => session.close());
    return undefined;
  },
};
const replaces: Force = {
  outcome: 'cancelled',
  strike: (trial) => trial.deliverClear(trial.newSlot(), successor, { replaceMs: 600 }),
};
const terminates: Force = {
  outcome: 'lost',
  async strike(trial, _, runId) {
    await trial.field.db.query('SELECT pg_terminate_backend(backend_pid) FROM cronce.run WHERE id = $1', [
      runId,
    ]);
    return undefined;
  },
};
/** As a pooler does that drops its connection to the server, and keeps the client's. */
const drops: Force = {
  outcome: 'lost',
  strike(_, { road }) {
    road.proxy.partition({ serverSide: 'dropped' });
    return Promise.resolve(undefined);
  },
};

interface Plight {
  readonly work: readonly Step[];
  readonly begin: (trial: Trial, victim: Victim) => Promise<unknown>;
}

const cutOff: Plight = {
  work: [{ do: 'vouch', ms: 10_000 }],
  async begin(trial, { road }) {
    await delay(trial.between(0, 700));
    road.proxy.partition();
    await delay(trial.between(0, 300));
  },
};
/** Not for so long that it could no longer vouch: when it goes on, its next `check()` comes before any news. */
const blocked: Plight = {
  work: [
    { do: 'vouch', ms: 100 },
    { do: 'block', ms: 1_000 },
    { do: 'vouch', ms: 5_000 },
  ],
  begin: (_, victim) => stepBegun(victim, 'block'),
};

const forces = [cancels, replaces, terminates, drops].flatMap((force) =>
  [cutOff, blocked].map((plight) => ({ force, plight })),
) as unknown as readonly [Struck, ...Struck[]];
interface Struck {
  readonly force: Force;
  readonly plight: Plight;
}

export const force: Row = (ground, trials, way) =>
  playRow(ground, { ...named('force', way), trials, lanes: 4 }, async (trial) => {
    const { force, plight } = trial.turn(forces);
    const victim = await trial.begin([count, ...plight.work]);
    const begun = await trial.begun(victim.delivery);
    await plight.begin(trial, victim);
    const struckAt = Date.now();
    const striker = await force.strike(trial, victim, begun.runId);
    const freeAt = striker ? undefined : (await trial.free(leaseMs + slackMs)).freeAt;
    if (freeAt !== undefined) trial.time('release', freeAt - struckAt);
    const next = striker ?? (await trial.next(trial.newSlot(), successor, leaseMs + slackMs));
    await trial.recovered(next, struckAt, freeAt);
    demandSuccess(trial, await next.ended());
    await victim.delivery.ended();
    await trial.settle();
    const status = await trial.statusOf(begun.runId);
    if (status !== force.outcome) trial.violate(`the run ended by force is stored as ${String(status)}`);
  });

/** One backend is killed by signal 9: the server ends all others and recovers, under the postmaster that it had. */
export const crash: Row = (ground, trials, way) =>
  playRow(ground, { ...named('crash', way), trials, lanes: 1 }, async (trial) => {
    const victim = await trial.begin([count, { do: 'vouch', ms: 10_000 }]);
    const begun = await trial.begun(victim.delivery);
    await delay(trial.between(0, 700));
    if (trial.turn([true, false])) victim.road.proxy.partition();
    const whose = trial.turn(['pg_backend_pid()', 'backend_pid', 'backend_pid', 'pg_backend_pid()']);
    const [row] = await trial.field.db.query(`SELECT ${whose} AS pid FROM cronce.run WHERE id = $1`, [
      begun.runId,
    ]);
    const crashedAt = Date.now();
    process.kill(row?.['pid'] as number, 'SIGKILL');
    const next = await trial.next(victim.slot, brief, 4 * leaseMs);
    await trial.recovered(next, crashedAt);
    demandSuccess(trial, await next.ended());
    await demandLost(trial, victim, begun.runId);
  });
