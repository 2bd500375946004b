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
  /** Runs between their T0 and T1. In this slow motion it stands for the age below which a sweep leaves a record alone. */
  readonly young = new Set<string>();
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
  /** How long a start record may stand without its lock, ms. */
  readonly gapMs: number;
}

export async function connect(url: string): Promise<pg.Client> {
  const session = new pg.Client({ connectionString: url });
  session.on('error', () => undefined);
  await session.connect();
  // As the protocol names it in each of its transactions; the database's default is another.
  await session.query('SET default_transaction_isolation = "read committed"');
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
export function claimant(
  session: pg.Client,
  { job, slot, witness, gapMs }: Round,
  name: string,
  id = randomUUID(),
): Client {
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
          witness.young.add(id);
          await session.query(begin);
          const made = await answer(session, 'SELECT cronce.claim($1) AS answer', [
            claimOf(id, job, slot, again, gapMs),
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
          if (!inside) await session.query('ROLLBACK');
          else {
            witness.enter();
            witness.young.delete(id);
          }
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

/** Looks for start records whose holder is gone, and settles what it found: two steps. */
export function sweeper(session: pg.Client, { job, witness }: Round): Client {
  let found: { id: string; fence: string }[] = [];
  const script = function* (): Generator<Step> {
    yield {
      name: 'the sweep looks',
      run: async () => {
        const { rows } = await session.query<{ id: string; fence: string }>(
          'SELECT o.id, o.fence FROM cronce.orphans(0, 100) o JOIN cronce.run r USING (id) WHERE r.job = $1',
          [job],
        );
        found = rows.filter(({ id }) => !witness.young.has(id));
      },
    };
    yield {
      name: 'the sweep settles',
      run: async () => {
        const ids = found.map(({ id }) => id);
        const fences = found.map(({ fence }) => fence);
        await session.query(`SELECT id FROM cronce.settle_dead($1, $2, now(), 'swept')`, [ids, fences]);
      },
    };
  };
  return clientOf('the sweep', session, script());
}

/** Asks for the end of a run; one that holds no lock is ended there and then. */
export function canceller(session: pg.Client, runId: string): Client {
  const script = function* (): Generator<Step> {
    yield {
      name: 'the cancel asks',
      run: async () => {
        await session.query('SELECT cronce.request_cancel($1, $2)', [runId, 'the test']);
      },
    };
  };
  return clientOf('the cancel', session, script());
}

/** A start record whose holder died: its lock is free, its backend no more. */
export async function leaveOrphan(session: pg.Client, { job, slot }: Round): Promise<void> {
  const id = randomUUID();
  const key = lockKey(job).toString();
  await session.query('INSERT INTO cronce.lock (key, name, fence, run_id) VALUES ($1, $2, 1, $3)', [
    key,
    job,
    id,
  ]);
  await session.query(
    `INSERT INTO cronce.run (id, job, slot, scheduled_for, trigger, status, lock_name, lock_key, fence, backend_pid,
       attempt, max_attempts, lease_ms, lock_delay_ms, received_at, claimed_at, started_at)
     VALUES ($1, $2::text, $3::text, $3::text::timestamptz, 'rule', 'running', $2::text, $4, 1, 1, 1, 3, 15000, 15000,
       now(), now(), now())`,
    [id, job, slot, key],
  );
}

function claimOf(id: string, job: string, slot: string, again: boolean, gapMs: number): object {
  return {
    schema: schemaVersion,
    deployment: 'default',
    again,
    gapMs,
    leaseMs: 15_000,
    lockDelayMs: 15_000,
    timeLeftMs: 600_000,
    timeoutMs: 60_000,
    run: { id, job, slot, scheduledFor: slot, slotGuessed: false, trigger: 'rule', params: null },
    lock: {
      name: job,
      keys: [lockKey(job).toString()],
      guard: lockKey(`${job}@${slot}`).toString(),
      waitMs: 0,
    },
    policy: { byHand: false, maxAttempts: 3, afterLost: 'rerun', startDeadlineMs: null },
  };
}

/** The same client in fewer, larger steps: what the protocol sends as one message is one step. */
export function inMessages(client: Client): Client {
  const script = function* (): Generator<Step> {
    for (let step = client.next(); step; step = client.next()) {
      const first = step;
      yield {
        name: first.name,
        run: async () => {
          await first.run();
          if (first.name.endsWith('claims') || first.name.endsWith('finishes')) await client.next()?.run();
        },
      };
    }
  };
  return clientOf(client.name, client.session, script());
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
