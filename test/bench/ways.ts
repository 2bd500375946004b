/** The same server reached by either driver, over a network of a given length: for our invocation, and for the bare recipe. */
import { Client as NeonClient } from '@neondatabase/serverless';
import pg from 'pg';
import WebSocket from 'ws';
import { defineJob, type Job } from '../../src/job.ts';
import { coordinate, type Coordinator } from '../../src/coordinate.ts';
import type { Target } from '../../src/postgres/driver.ts';
import type { RunRecord } from '../../src/run.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import type { Connect } from './bare.ts';
import { startLag, through, type Lag } from './lag.ts';
import type { Stand } from './stand.ts';

export interface Way {
  readonly target: Target;
  readonly connect: Connect;
  readonly lag: Lag;
  close(): Promise<void>;
}

/** @param ms one way */
export async function pgWay({ port }: Stand, url: string, ms: number): Promise<Way> {
  const lag = await startLag({ target: port, ms });
  const far = through(url, lag);
  return {
    target: targetOf(far),
    connect: () => new pg.Client({ connectionString: far }),
    lag,
    close: async () => lag.stop(),
  };
}

/** The network lies between the client and the relay, as with Neon, whose relay stands beside the database. */
export async function neonWay(stand: Stand, url: string, ms: number): Promise<Way> {
  const relay = await stand.relayTo(stand.port);
  const lag = await startLag({ target: relay.port, ms });
  const wsProxy = relay.wsProxy.replace(/:\d+/, `:${lag.port}`);
  return {
    target: targetOf(url, 'neon', wsProxy),
    connect: () => bareNeon(url, wsProxy),
    lag,
    async close() {
      await lag.stop();
      await relay.stop();
    },
  };
}

/** Set as we set it: a relay of one's own, and a password that goes out when it is asked for. */
function bareNeon(url: string, wsProxy: string): pg.Client {
  const client = new NeonClient(url);
  Object.assign(client.neonConfig, {
    webSocketConstructor: WebSocket,
    wsProxy: (host: string, port: string | number) => `${wsProxy}${host}:${port}`,
    useSecureWebSocket: false,
    pipelineTLS: false,
    forceDisablePgSSL: true,
    pipelineConnect: false,
  });
  return client as unknown as pg.Client;
}

export const empty = defineJob({ name: 'bench', work: async () => null });
/** Its lock is held while skips are measured. */
export const held = defineJob({ name: 'bench-held', work: async () => null });
export const failing = defineJob({
  name: 'bench-failing',
  retries: 0,
  work: async () => Promise.reject(new Error('as it should')),
});

let slots = 0;

/** One delivery of a slot of its own. @throws unless it ends as expected */
export async function deliver(
  job: Job,
  { target }: Pick<Way, 'target'>,
  expected: RunRecord['status'],
  options: Partial<Coordinator> = {},
): Promise<void> {
  slots += 1;
  const coordinator = coordinatorOn(target.url, { ...options, target });
  const { status, error } = await coordinate(
    deliveryFor(job, new Date(), { slot: `bench:${slots}` }),
    600_000,
    coordinator,
  );
  if (status !== expected) throw new Error(`the delivery ${status}: ${error?.message ?? ''}`);
}

/** A run that has the lock until it is let go. */
export async function hold(url: string): Promise<() => Promise<void>> {
  let letGo: () => void = () => undefined;
  const over = new Promise<void>((resolve) => (letGo = resolve));
  let run: Promise<void> | undefined;
  await new Promise<void>((resolve, reject) => {
    const work = async () => (resolve(), over);
    run = deliver({ ...held, timeoutMs: 599_000, work }, { target: targetOf(url) }, 'succeeded');
    run.catch(reject);
  });
  return async () => {
    letGo();
    await run;
  };
}
