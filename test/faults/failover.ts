/** What becomes of a holder whose server waits for a standby, or gives way to one. */
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { freePort, startStandby, type LocalPostgres } from '../../infra/local/postgres.ts';
import { startServer } from '../support/server.ts';
import type { Ended } from './crew.ts';
import type { Ground } from './field.ts';
import type { Step } from './orders.ts';
import {
  brief,
  count,
  demandLost,
  demandSuccess,
  demandSuccessOrDuplicate,
  named,
  type Row,
} from './rows.ts';
import { described, leaseMs, playRow, slackMs, type RowResult, type Trial, type Victim } from './trial.ts';

// ── A synchronous standby that is away ────────────────────────────────────────────────────────────────────────

const written: readonly Step[] = [count, { do: 'write', rounds: 2, everyMs: 5 }, { do: 'vouch', ms: 600 }];

/** COMMIT hangs for longer than a lease: it is waited for, recorded once and told once. Of every third the client dies. */
export const slowCommit: Row = (ground, trials, way) =>
  playRow(ground, { ...named('slow commit', way), trials, lanes: 1 }, async (trial) => {
    const { db } = trial.field;
    await db.query(`ALTER DATABASE ${db.name} SET synchronous_commit = 'on'`);
    const victim = await trial.begin(written);
    const begun = await trial.begun(victim.delivery);
    const isKilled = trial.turn([false, false, true]);
    try {
      await setStandby(trial, 'away');
      await untilItCommits(trial, victim, begun.runId);
      const from = Date.now();
      const beside = await trial.deliverClear(victim.slot, brief);
      if (isKilled) await victim.worker.kill();
      await delay(trial.between(leaseMs, 2 * leaseMs));
      await setStandby(trial, '');
      demandNotRun(trial, await beside.ended());
      if (isKilled) await demandDuplicate(trial, victim);
      else await demandToldOnce(trial, victim, begun.runId);
      trial.time('commit', Date.now() - from);
    } finally {
      await setStandby(trial, '');
    }
  });

/** One that is named and not connected is away. Commits of sessions that wait for it hang from the reload on. */
async function setStandby({ field: { db } }: Trial, name: string): Promise<void> {
  await db.query(`ALTER SYSTEM SET synchronous_standby_names = '${name}'`);
  await db.query('SELECT pg_reload_conf()');
}

async function untilItCommits(trial: Trial, { delivery }: Victim, runId: string): Promise<void> {
  const waits = `SELECT 1 FROM cronce.run r JOIN pg_stat_activity a ON a.pid = r.backend_pid
                 WHERE r.id = $1 AND a.wait_event = 'SyncRep'`;
  while ((await trial.field.db.query(waits, [runId])).length === 0) {
    if (delivery.isTold) trial.giveUp('the run was over before its standby was away');
    await delay(10);
  }
}

function demandNotRun(trial: Trial, ended: Ended): void {
  const isSkipped = ended.kind === 'told' && ended.run.status === 'skipped';
  if (!isSkipped) trial.violate(`a delivery beside a slow commit: ${described(ended)}`);
}

async function demandDuplicate(trial: Trial, { slot }: Victim): Promise<void> {
  await trial.free(leaseMs + slackMs);
  await demandSuccessOrDuplicate(trial, await (await trial.next(slot, brief, leaseMs)).ended());
}

async function demandToldOnce(trial: Trial, { delivery }: Victim, runId: string): Promise<void> {
  demandSuccess(trial, await delivery.ended());
  const lines = trial.field.crew.logged.filter((line) => line.runId === runId);
  if (lines.length !== 1) trial.violate(`a slow commit was told ${lines.length} times`);
}

// ── A standby that takes over ─────────────────────────────────────────────────────────────────────────────────

/** One address for whichever server has the part, as a managed database has. */
interface Endpoint {
  readonly port: number;
  switchTo(port: number): void;
  close(): Promise<void>;
}

async function openEndpoint(firstPort: number): Promise<Endpoint> {
  let target = firstPort;
  const port = await freePort();
  const sockets = new Set<Socket>();
  const listener = createServer((client) => {
    const server = connect({ host: '127.0.0.1', port: target, noDelay: true });
    for (const [one, other] of [
      [client, server],
      [server, client],
    ] as const) {
      sockets.add(one.on('error', () => other.destroy()).on('close', () => other.destroy()));
      one.pipe(other);
    }
  }).listen(port, '127.0.0.1');
  await once(listener, 'listening');
  const drop = () => {
    for (const socket of sockets) socket.destroy();
    sockets.clear();
  };
  return {
    port,
    switchTo(next) {
      target = next;
      drop();
    },
    async close() {
      const closed = once(listener, 'close');
      listener.close();
      drop();
      await closed;
    },
  };
}

export const promotion: Row = async (ground, trials) => {
  // Not of the server of all: other rows make and drop databases there, and a copy would have them all.
  const { settings } = ground.server;
  const base = await startServer({ dataDir: path.join(ground.folder, 'base'), settings });
  const results: RowResult[] = [];
  try {
    for (let n = 0; n < trials; n++) results.push(await promoteOnce({ ...ground, server: base }, n));
  } finally {
    await base.kill();
  }
  return {
    row: 'promotion',
    trials: results.reduce((sum, one) => sum + one.trials, 0),
    undone: results.flatMap(({ undone }) => undone),
    violations: results.flatMap(({ violations }) => violations),
    times: mergedTimes(results),
  };
};

function mergedTimes(results: readonly RowResult[]): Record<string, number[]> {
  const names = new Set(results.flatMap(({ times }) => Object.keys(times)));
  return Object.fromEntries(
    [...names].map((name) => [name, results.flatMap(({ times }) => times[name] ?? [])]),
  );
}

let copies = 0;

/** On servers of its own: a promoted copy of an empty one, and a standby of that. */
async function promoteOnce(ground: Ground, n: number): Promise<RowResult> {
  const place = () => ({ dataDir: path.join(ground.folder, `copy-${++copies}`) });
  const primary = await startStandby(ground.server, place());
  await promote(primary);
  const standby = await startStandby(primary, place());
  const endpoint = await openEndpoint(primary.port);
  const url = new URL(primary.url);
  url.port = String(endpoint.port);
  const server = { ...primary, url: url.href, port: endpoint.port };
  try {
    return await playRow({ ...ground, server }, { row: 'promotion', trials: 1, lanes: 1 }, (trial) =>
      failOver(trial, { primary, standby, endpoint, lossy: n % 2 === 1, isCut: n % 4 < 2 }),
    );
  } finally {
    await endpoint.close();
    await standby.kill();
    await primary.kill();
  }
}

interface Failover {
  readonly primary: LocalPostgres;
  readonly standby: LocalPostgres;
  readonly endpoint: Endpoint;
  /** The standby lacks the last commits: all that is known of the holder. */
  readonly lossy: boolean;
  readonly isCut: boolean;
}

async function failOver(trial: Trial, { primary, standby, endpoint, lossy, isCut }: Failover): Promise<void> {
  const prepared = await trial.prepare();
  await untilCaughtUp(primary, standby);
  if (lossy) await stopFollowing(standby);
  const delivery = trial.deliver(prepared, [count, { do: 'vouch', ms: 20_000 }]);
  const begun = await trial.begun(delivery);
  if (lossy) trial.forgotten.push(begun.runId);
  else await untilCaughtUp(primary, standby);
  await delay(trial.between(0, 700));
  if (isCut) prepared.road.proxy.partition();
  const downAt = Date.now();
  await primary.kill();
  await promote(standby);
  endpoint.switchTo(standby.port);
  const next = await trial.next(prepared.slot, brief, 4 * leaseMs);
  await trial.recovered(next, downAt);
  const again = await trial.begun(next);
  if (BigInt(again.fence) <= BigInt(begun.fence))
    trial.violate(`the fence ${begun.fence} was followed by ${again.fence}`);
  demandSuccess(trial, await next.ended());
  const victim = { ...prepared, delivery };
  if (lossy) await delivery.ended();
  else await demandLost(trial, victim, begun.runId);
}

async function onServer<T extends pg.QueryResultRow>(server: LocalPostgres, sql: string): Promise<T[]> {
  const client = new pg.Client({ connectionString: server.url, ssl: false });
  await client.connect();
  try {
    return (await client.query<T>(sql)).rows;
  } finally {
    await client.end();
  }
}

async function promote(standby: LocalPostgres): Promise<void> {
  await onServer(standby, 'SELECT pg_promote(true, 60)');
}

async function untilCaughtUp(primary: LocalPostgres, standby: LocalPostgres): Promise<void> {
  const [at] = await onServer<{ lsn: string }>(primary, 'SELECT pg_current_wal_flush_lsn()::text AS lsn');
  const behind = `SELECT 1 WHERE pg_last_wal_replay_lsn() < '${at?.lsn ?? ''}'`;
  while ((await onServer(standby, behind)).length > 0) await delay(20);
}

async function stopFollowing(standby: LocalPostgres): Promise<void> {
  await onServer(standby, `ALTER SYSTEM SET primary_conninfo = ''`);
  await onServer(standby, 'SELECT pg_reload_conf()');
  while ((await onServer(standby, 'SELECT 1 FROM pg_stat_wal_receiver')).length > 0) await delay(20);
}
