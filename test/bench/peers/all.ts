/** Ourselves and the peers, in the order of the tables. */
import { bare, bareTransaction } from './bare.ts';
import { ours, oursWithoutDelay } from './cronce.ts';
import { dbos } from './dbos.ts';
import { graphileWorker } from './graphile-worker.ts';
import { nodeCron } from './node-cron.ts';
import type { Peer } from './peer.ts';
import { pgBoss } from './pg-boss.ts';
import { powertools } from './powertools.ts';
import { redlock } from './redlock.ts';

export const all: readonly Peer[] = [
  ours,
  oursWithoutDelay,
  bare,
  bareTransaction,
  redlock,
  nodeCron,
  pgBoss,
  graphileWorker,
  dbos,
  powertools,
];
