import { randomUUID } from 'node:crypto';
import { setImmediate as turn } from 'node:timers/promises';
import pg from 'pg';
import { schemaVersion } from '../../src/claim.ts';
import { lockKey } from '../../src/lock.ts';

/**
 * The protocol's clients, cut into their single steps, each on a session of its own, so that a test decides in which
 * order the steps happen. A step that PostgreSQL makes wait is put aside, and goes on when it can.
 */

export interface Step {
  readonly name: string;
  run(): Promise<void>;
}

/** A client of the protocol: its next steps, until it has none. */
export interface Client {
  readonly name: string;
  readonly session: pg.Client;
  next(): Step | undefined;
}

/** What must hold of all clients together. */
export class Witness {
  inside = 0;
  mostInside = 0;
  readonly succeeded: string[] = [];

  enter(): void {
    this.inside += 1;
    this.mostInside = Math.max(this.mostInside, this.inside);
  }
  leave(): void {
    this.inside -= 1;
  }
}

export interface Round {
  readonly job: string;
  readonly slot: string;
  readonly witness: Witness;
}

export async function connect(url: string): Promise<pg.Client> {
  const session = new pg.Client({ connectionString: url });
  session.on('error', () => undefined);
  await session.connect();
  return session;
}

async function answer(
  session: pg.Client,
  sql: string,
  values: unknown[] = [],
): Promise<Record<string, unknown>> {
  const { rows } = await session.query<{ answer: Record<string, unknown> }>(sql, values);
  return rows[0]?.answer ?? {};
}

/** Claims, enters, works, records: five steps, and again from the first where it must give way. */
export function claimant(session: pg.Client, { job, slot, witness }: Round, name: string): Client {
  const id = randomUUID();
  let status = '';
  let inside = false;
  let again = false;
  const begin = 'BEGIN ISOLATION LEVEL READ COMMITTED';
  const finish = async () => {
    try {
      await answer(session, 'SELECT cronce.finish($1) AS answer', [
        { id, status: 'succeeded', final: true, output: 1 },
      ]);
      status = 'finished';
    } catch (error) {
      // Settled or cancelled by someone else: the transaction is aborted, COMMIT will answer ROLLBACK.
      if ((error as { code?: string }).code !== 'CR004') throw error;
      status = 'turned away';
    }
  };
  const script = function* (): Generator<Step> {
    for (;;) {
      yield {
        name: `${name} claims`,
        run: async () => {
          await session.query(begin);
          const made = await answer(session, 'SELECT cronce.claim($1) AS answer', [
            claimOf(id, job, slot, again),
          ]);
          status = (made['run'] as { status: string }).status;
        },
      };
      yield {
        name: `${name} commits T0`,
        run: async () => {
          await session.query('COMMIT');
        },
      };
      if (status !== 'running') return;
      yield {
        name: `${name} enters`,
        run: async () => {
          await session.query(begin);
          ({ entered: inside } = (await answer(session, 'SELECT cronce.enter($1) AS answer', [id])) as {
            entered: boolean;
          });
          if (inside) witness.enter();
          else await session.query('ROLLBACK');
        },
      };
      if (inside) break;
      again = true;
    }
    yield { name: `${name} finishes`, run: finish };
    yield {
      name: `${name} commits T1`,
      run: async () => {
        witness.leave();
        const { command } = await session.query('COMMIT');
        if (command === 'COMMIT' && status === 'finished') witness.succeeded.push(name);
      },
    };
  };
  return clientOf(name, session, script());
}

function claimOf(id: string, job: string, slot: string, again: boolean): object {
  return {
    schema: schemaVersion,
    published: false,
    again,
    gapMs: 60_000,
    leaseMs: 15_000,
    run: { id, job, slot, scheduledFor: slot, slotGuessed: false, trigger: 'rule', params: null },
    lock: { name: job, keys: [lockKey(job).toString()], guard: null, waitMs: 0 },
    policy: { byHand: false, maxAttempts: 3, afterLost: 'rerun', startDeadlineMs: null },
  };
}

export function clientOf(name: string, session: pg.Client, script: Generator<Step>): Client {
  return { name, session, next: () => script.next().value as Step | undefined };
}

/**
 * Takes steps in the order given by `order` (indices of clients), then lets everyone run to the end. A client whose
 * step waits for a lock is passed over until that step has come through.
 */
export async function interleave(
  clients: readonly Client[],
  order: readonly number[],
  monitor: pg.Client,
): Promise<void> {
  const waiting = new Map<number, Promise<void>>();
  const done = new Set<number>();
  const take = async (index: number) => {
    const client = clients[index];
    if (!client || done.has(index) || waiting.has(index)) return;
    const step = client.next();
    if (!step) {
      done.add(index);
      return;
    }
    const running = step.run();
    const settled = running.finally(() => waiting.delete(index));
    waiting.set(index, settled);
    settled.catch(() => undefined);
    await settledOrBlocked(settled, client, monitor);
  };
  for (const index of order) await take(index);
  while (done.size < clients.length) {
    for (let index = 0; index < clients.length; index++) await take(index);
    if (waiting.size > 0) await Promise.race([...waiting.values(), turn()]);
  }
}

/** Resolves when the step has come through, or PostgreSQL says that its session waits for a lock. */
async function settledOrBlocked(step: Promise<void>, client: Client, monitor: pg.Client): Promise<void> {
  const progress = { settled: false };
  const watched = step.finally(() => (progress.settled = true));
  watched.catch(() => undefined);
  const pid = (client.session as unknown as { processID: number }).processID;
  await Promise.race([watched, turn()]);
  while (!progress.settled) {
    const { rows } = await monitor.query<{ blocked: boolean }>(
      'SELECT cardinality(pg_blocking_pids($1)) > 0 AS blocked',
      [pid],
    );
    if (rows[0]?.blocked) return;
    await Promise.race([watched, turn()]);
  }
  await watched;
}
