import { randomUUID } from 'node:crypto';
import { setImmediate as turn } from 'node:timers/promises';
import pg from 'pg';
import { schemaVersion } from '../../src/path/claim.ts';
import { rhythm } from '../../src/path/limits.ts';
import { lockKey } from '../../src/lock-name.ts';

/**
 * The protocol's clients, cut into their single steps, each on a session of its own, so that a test decides in which
 * order the steps happen. A step that waits (for a lock of PostgreSQL's, or by asking again and again) is put aside, and
 * goes on when it can.
 *
 * Time is slow here and a lease long, so nobody's vouching runs out while a test looks. What a client vouches for is
 * reckoned instead: it begins when its claim was answered and the lock delay is over that the claim was told, and ends
 * when the client hears of its end, or a lease less the margin after the last message that it got an answer to.
 */

export interface Step {
  readonly name: string;
  run(): Promise<void>;
}

/** A client of the protocol: its next steps, until it has none. */
export interface Client {
  readonly name: string;
  /** On which its steps may wait. */
  readonly sessions: readonly pg.Client[];
  next(): Step | undefined;
}

export const leaseMs = 15_000;
const vouchMs = leaseMs - rhythm(leaseMs).marginMs;

/** One run's time in its lock, by `performance.now()`. */
export interface Stay {
  readonly name: string;
  readonly slot: string;
  readonly enteredAt: number;
  /** When its work may begin: after the lock delay. */
  readonly beganAt: number;
  /** The last moment at which it surely held the lock. */
  heldUntil: number;
  /** Until when its `check()` may have passed. */
  vouchedUntil: number;
}

/** What must hold of all clients together. */
export class Witness {
  /** Runs between their T0 and T1. In this slow motion it stands for the age below which a sweep leaves a record alone. */
  readonly young = new Set<string>();
  readonly succeeded: string[] = [];
  readonly stays: Stay[] = [];

  enter(name: string, slot: string, restMs: number): Stay {
    const enteredAt = performance.now();
    const beganAt = enteredAt + restMs;
    const stay = { name, slot, enteredAt, beganAt, heldUntil: Infinity, vouchedUntil: Infinity };
    this.stays.push(stay);
    return stay;
  }

  /** How many held the lock at once. */
  mostInside(slot?: string): number {
    return mostAtOnce(this.#of(slot).map(({ enteredAt, heldUntil }) => [enteredAt, heldUntil]));
  }

  /** How many may have been at work at once, those included that had lost the lock and didn't know. */
  mostVouching(slot?: string): number {
    return mostAtOnce(this.#of(slot).map(({ beganAt, vouchedUntil }) => [beganAt, vouchedUntil]));
  }

  /** How many came in after a lock delay. */
  get delayed(): number {
    return this.stays.filter(({ enteredAt, beganAt }) => beganAt > enteredAt).length;
  }

  #of(slot: string | undefined): Stay[] {
    return this.stays.filter((stay) => slot === undefined || stay.slot === slot);
  }
}

function mostAtOnce(all: readonly (readonly [from: number, until: number])[]): number {
  const spans = all.filter(([from, until]) => from < until);
  const at = (time: number) => spans.filter(([from, until]) => from <= time && time < until).length;
  return Math.max(0, ...spans.map(([from]) => at(from)));
}

/** What the deliveries of one round have in common. */
export interface Round {
  readonly job: string;
  readonly witness: Witness;
  /** How long a start record may stand without its lock, ms. */
  readonly gapMs: number;
  /** How many places the lock has; 1 if not given. */
  readonly places?: number;
  /** How long a claim waits for the lock, ms. */
  readonly waitMs?: number;
  /** How long a claim waits for another's T0 to end, ms. */
  readonly patienceMs?: number;
  /** `overlap: 'replace'`: whether the run in the way is ended at once, or left to hear of it. */
  readonly replace?: 'by force' | 'when it has heard';
}

export interface Delivered {
  readonly name: string;
  readonly slot: string;
  readonly id?: string;
  /** A second session, for one transaction of `fenced` in its work. */
  readonly beside?: pg.Client;
  /** A new session, for what is to be recorded once its own is gone. */
  readonly reopen?: () => Promise<pg.Client>;
}

export async function connect(url: string): Promise<pg.Client> {
  const session = new pg.Client({ connectionString: url });
  session.on('error', () => undefined);
  await session.connect();
  // As the protocol names them in each of its transactions; the database's defaults are others. Here a step may take long.
  await session.query(
    `SELECT set_config(name, CASE name WHEN 'default_transaction_isolation' THEN 'read committed' ELSE '0' END, false)
     FROM pg_settings WHERE name ~ '^(statement|lock|idle_in_transaction_session|idle_session|transaction)_timeout$'
       OR name = 'default_transaction_isolation'`,
  );
  return session;
}

/** The table that a fenced transaction writes to, and what was in it of a run when that run ended. */
export const fencedTables = `
  CREATE TABLE public.fenced_note (run_id uuid);
  CREATE TABLE public.fenced_until (run_id uuid, notes integer);
  CREATE FUNCTION public.count_fenced() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN
    INSERT INTO public.fenced_until
      SELECT NEW.id, count(*) FROM public.fenced_note n WHERE n.run_id = NEW.id;
    RETURN NEW;
  END $$;
  CREATE TRIGGER count_fenced AFTER UPDATE ON cronce.run FOR EACH ROW
    WHEN (OLD.status = 'running' AND NEW.status <> 'running') EXECUTE FUNCTION public.count_fenced();
  GRANT ALL ON public.fenced_note, public.fenced_until TO PUBLIC`;

async function answer<T>(session: pg.Client, sql: string, values: unknown[] = []): Promise<T> {
  const { rows } = await session.query<{ answer: T }>(sql, values);
  return rows[0]?.answer as T;
}

const begin = 'BEGIN ISOLATION LEVEL READ COMMITTED';

type State = 'claiming' | 'asked' | 'turned away' | 'running' | 'inside' | 'finished' | 'over';

/** One delivery, as `coordinate` takes it. */
class Claimant {
  readonly sessions: pg.Client[];
  readonly #session: pg.Client;
  readonly #round: Round;
  readonly #own: Delivered;
  readonly #id: string;
  #state: State = 'claiming';
  #again = false;
  #inTheWay = '';
  #outcome = '';
  #restUntil = 0;
  #stay: Stay | undefined;
  /** When the last message was sent that was answered. */
  #heardAt = 0;

  constructor(session: pg.Client, round: Round, own: Delivered) {
    [this.#session, this.#round, this.#own, this.#id] = [session, round, own, own.id ?? randomUUID()];
    this.sessions = own.beside ? [session, own.beside] : [session];
  }

  /** Claims, enters, works, records: five steps, and again from the first where it must give way. */
  *script(): Generator<Step> {
    while (!this.#is('inside')) {
      yield this.#step('claims', () => this.#claim());
      yield this.#step('commits T0', () => this.#session.query('COMMIT'));
      if (this.#is('turned away', 'over')) return;
      if (this.#is('asked')) yield this.#step('waits for its end', () => this.#endTheOther());
      else yield this.#step('enters', () => this.#enter());
      if (this.#is('over')) return;
      this.#again = true;
    }
    if (this.#own.beside) yield* this.#fenced(this.#own.beside);
    yield this.#step('finishes', () => this.#finish());
    yield this.#step('commits T1', () => this.#commit());
  }

  /** Asked anew each time: what TypeScript has narrowed would outlive the step that changes it. */
  #is(...states: readonly State[]): boolean {
    return states.includes(this.#state);
  }

  *#fenced(beside: pg.Client): Generator<Step> {
    yield this.#step('begins fenced', () => this.#beginFenced(beside), 'beside');
    yield this.#step('commits fenced', () => this.#commitFenced(beside), 'beside');
  }

  #step(name: string, act: () => Promise<unknown>, on: 'own' | 'beside' = 'own'): Step {
    return {
      name: `${this.#own.name} ${name}`,
      run: async () => {
        if (this.#is('over')) return;
        const sentAt = performance.now();
        try {
          await act();
          if (on === 'own') this.#heardAt = sentAt;
        } catch (error) {
          if (!isConnectionLoss(error)) throw error;
          await this.#hear();
        }
      },
    };
  }

  async #claim(): Promise<void> {
    this.#round.witness.young.add(this.#id);
    await this.#session.query(begin);
    const request = claimOf(this.#id, this.#round, this.#own.slot, this.#again);
    const made = await answer<{ run?: { status: string }; restMs?: number; replace?: string }>(
      this.#session,
      'SELECT cronce.claim($1) AS answer',
      [request],
    );
    this.#inTheWay = made.replace ?? '';
    this.#restUntil = performance.now() + (made.restMs ?? 0);
    this.#state = made.replace ? 'asked' : made.run?.status === 'running' ? 'running' : 'turned away';
    if (this.#state !== 'running') this.#round.witness.young.delete(this.#id);
  }

  async #endTheOther(): Promise<void> {
    const forced = `SELECT cronce.settle($1) AS answer`;
    if (this.#round.replace === 'by force')
      await answer(this.#session, forced, [{ id: this.#inTheWay, status: 'cancelled', final: true }]);
    else await this.#session.query(untilOver(this.#inTheWay));
    this.#state = 'claiming';
  }

  async #enter(): Promise<void> {
    await this.#session.query(begin);
    const { entered } = await answer<{ entered: boolean }>(
      this.#session,
      'SELECT cronce.enter($1) AS answer',
      [this.#id],
    );
    if (!entered) {
      await this.#session.query('ROLLBACK');
      this.#state = 'claiming';
      return;
    }
    const restMs = Math.max(0, this.#restUntil - performance.now());
    this.#stay = this.#round.witness.enter(this.#own.name, this.#own.slot, restMs);
    this.#round.witness.young.delete(this.#id);
    this.#state = 'inside';
    await this.#session.query('SAVEPOINT work');
  }

  /** Whether it stands; what it writes, if it does. A connection that is lost, or a fence refused, ends only this. */
  async #beginFenced(beside: pg.Client): Promise<void> {
    await unlessRefused(async () => {
      await beside.query(begin);
      const stands = await answer<boolean>(beside, 'SELECT cronce.begin_fenced($1, $2) AS answer', [
        this.#id,
        leaseMs,
      ]);
      if (stands) await beside.query('INSERT INTO public.fenced_note VALUES ($1)', [this.#id]);
      else await beside.query('ROLLBACK');
    });
  }

  async #commitFenced(beside: pg.Client): Promise<void> {
    await unlessRefused(async () => beside.query('SELECT cronce.demand_fence($1)', [this.#id]));
    await unlessRefused(async () => beside.query('COMMIT'));
  }

  /** A success whose cancel was asked is refused; then it is recorded as that, with the lock still held. */
  async #finish(): Promise<void> {
    try {
      await this.#record('succeeded', 1);
    } catch (error) {
      const code = codeOf(error);
      if (code === 'CR004')
        this.#outcome = 'turned away'; // aborted: COMMIT will answer ROLLBACK
      else if (code !== 'CR006') throw error;
      else {
        await this.#session.query('ROLLBACK TO SAVEPOINT work');
        await this.#record('cancelled', null);
      }
    }
    this.#state = 'finished';
  }

  async #record(status: string, output: unknown): Promise<void> {
    const outcome = { id: this.#id, own: true, status, final: true, output };
    await answer(this.#session, 'SELECT cronce.finish($1) AS answer', [outcome]);
    this.#outcome = status;
  }

  async #commit(): Promise<void> {
    this.#leave(performance.now());
    const { command } = await this.#session.query('COMMIT');
    if (command === 'COMMIT' && this.#outcome === 'succeeded')
      this.#round.witness.succeeded.push(this.#own.name);
    this.#state = 'over';
  }

  #leave(heldUntil: number): void {
    if (!this.#stay) return;
    this.#stay.heldUntil = Math.min(this.#stay.heldUntil, heldUntil);
    this.#stay.vouchedUntil = Math.min(this.#stay.vouchedUntil, performance.now(), this.#heardAt + vouchMs);
  }

  /** Its connection is gone. It stops, and where it was at work it says so by another. */
  async #hear(): Promise<void> {
    const wasInside = this.#stay !== undefined;
    this.#round.witness.young.delete(this.#id);
    this.#leave(this.#heardAt);
    this.#state = 'over';
    if (!wasInside || !this.#own.reopen) return;
    const session = await this.#own.reopen();
    this.sessions.push(session);
    const outcome = { id: this.#id, own: true, status: 'lost', final: false };
    const stored = await answer<{ status: string }>(session, 'SELECT cronce.settle($1) AS answer', [outcome]);
    if (stored.status === 'succeeded') this.#round.witness.succeeded.push(this.#own.name);
    this.sessions.pop();
    await session.end();
  }
}

export function claimant(session: pg.Client, round: Round, own: Delivered): Client {
  const it = new Claimant(session, round, own);
  return clientOf(own.name, it.sessions, it.script());
}

function untilOver(id: string): string {
  return `DO $$ BEGIN
    WHILE EXISTS (SELECT FROM cronce.run WHERE id = '${id}' AND status = 'running') LOOP
      PERFORM pg_sleep(0.003);
    END LOOP;
  END $$`;
}

function codeOf(error: unknown): string | undefined {
  return (error as { code?: string }).code;
}

function isConnectionLoss(error: unknown): boolean {
  const code = codeOf(error);
  return code === undefined
    ? /connection|not queryable/i.test(String(error))
    : /^(?:57P0[1-3]|E[A-Z]+)$/.test(code);
}

/** A fenced transaction may be refused, or ended by who ends its run. */
async function unlessRefused(act: () => Promise<unknown>): Promise<void> {
  try {
    await act();
  } catch (error) {
    if (!isConnectionLoss(error) && codeOf(error) !== 'CR004') throw error;
  }
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
  return clientOf('the sweep', [session], script());
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
  return clientOf('the cancel', [session], script());
}

/** Asks for the end of a run, and then ends it, whatever it is doing. */
export function forcer(session: pg.Client, runId: string): Client {
  const asking = canceller(session, runId);
  const script = function* (): Generator<Step> {
    yield asking.next() as Step;
    yield {
      name: 'force ends it',
      run: async () => {
        await session.query('SELECT cronce.settle($1)', [{ id: runId, status: 'cancelled', final: true }]);
      },
    };
  };
  return clientOf('force', [session], script());
}

/** Ends a client's session, as an administrator, a pooler or a restart does. */
export function killer(session: pg.Client, victim: pg.Client): Client {
  const script = function* (): Generator<Step> {
    yield {
      name: 'its session is ended',
      run: async () => {
        await session.query('SELECT pg_terminate_backend($1)', [pidOf(victim)]);
        const sql = 'SELECT FROM pg_stat_get_activity($1)';
        while ((await session.query(sql, [pidOf(victim)])).rowCount === 1) await turn();
      },
    };
  };
  return clientOf('the killer', [session], script());
}

/** One client after the other, as one. */
export function together(first: Client, second: Client): Client {
  const script = function* (): Generator<Step> {
    for (const client of [first, second]) for (let s = client.next(); s; s = client.next()) yield s;
  };
  return clientOf(`${first.name} and ${second.name}`, [...first.sessions, ...second.sessions], script());
}

function pidOf(session: pg.Client): number {
  return (session as unknown as { processID: number }).processID;
}

/** A start record whose holder died: its lock is free, its backend no more. */
export async function leaveOrphan(session: pg.Client, job: string, slot: string): Promise<void> {
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

function claimOf(id: string, round: Round, slot: string, again: boolean): object {
  const { job, gapMs, places = 1, waitMs = 0, patienceMs = 0, replace } = round;
  const keys = Array.from({ length: places }, (_, place) => lockKey(place === 0 ? job : `${job}#${place}`));
  return {
    schema: schemaVersion,
    deployment: 'default',
    again,
    gapMs,
    leaseMs,
    lockDelayMs: leaseMs,
    timeLeftMs: 600_000,
    timeoutMs: 60_000,
    run: { id, job, slot, scheduledFor: slot, slotGuessed: false, trigger: 'rule', params: null },
    lock: {
      name: job,
      keys: keys.map(String),
      guard: lockKey(`${job}@${slot}`).toString(),
      waitMs,
      patienceMs,
    },
    policy: {
      byHand: false,
      maxAttempts: 3,
      afterLost: 'rerun',
      startDeadlineMs: null,
      replace: replace !== undefined,
    },
  };
}

/** What the protocol sends as one message with the step that follows. */
const sentTogether = ['claims', 'finishes'] as const;

/** The same client in fewer, larger steps: what the protocol sends as one message is one step. */
export function inMessages(client: Client, joined: readonly string[] = sentTogether): Client {
  const script = function* (): Generator<Step> {
    for (let step = client.next(); step; step = client.next()) {
      const first = step;
      yield {
        name: first.name,
        run: async () => {
          await first.run();
          if (joined.some((name) => first.name.endsWith(name))) await client.next()?.run();
        },
      };
    }
  };
  return clientOf(client.name, client.sessions, script());
}

function clientOf(name: string, sessions: readonly pg.Client[], script: Generator<Step>): Client {
  return { name, sessions, next: () => script.next().value as Step | undefined };
}

/** Takes so many of a client's steps, alone. */
export async function advance(client: Client, steps: number): Promise<void> {
  for (let taken = 0; taken < steps; taken++) await client.next()?.run();
}

/** Takes all of a client's steps, alone. */
export async function playOut(client: Client): Promise<void> {
  for (let step = client.next(); step; step = client.next()) await step.run();
}

/** Which waits a step is put aside for: those for a lock of PostgreSQL's, and those that ask again and again. */
export type Waits = 'for locks' | 'all';

/**
 * Takes steps in the order given by `order` (indices of clients), then lets everyone run to the end. A client whose
 * step waits is passed over until that step has come through.
 */
export async function interleave(
  clients: readonly Client[],
  order: readonly number[],
  monitor: pg.Client,
  waits: Waits = 'all',
): Promise<void> {
  const waiting = new Map<number, Promise<void>>();
  const done = new Set<number>();
  const failures: unknown[] = [];
  const take = async (index: number) => {
    const client = clients[index];
    if (!client || done.has(index) || waiting.has(index)) return;
    const step = client.next();
    if (!step) {
      done.add(index);
      return;
    }
    const settled = step
      .run()
      .catch((error: unknown) => void failures.push(error))
      .finally(() => waiting.delete(index));
    waiting.set(index, settled);
    await settledOrWaiting(settled, client, monitor, waits);
    if (failures.length > 0) throw failures[0];
  };
  for (const index of order) await take(index);
  while (done.size < clients.length) {
    for (let index = 0; index < clients.length; index++) await take(index);
    if (waiting.size > 0) await Promise.race([...waiting.values(), turn()]);
  }
}

/** Resolves when the step has come through, or PostgreSQL says that its session waits. */
async function settledOrWaiting(
  step: Promise<void>,
  client: Client,
  monitor: pg.Client,
  waits: Waits,
): Promise<void> {
  const progress = { settled: false };
  const watched = step.finally(() => (progress.settled = true));
  await Promise.race([watched, turn()]);
  while (!progress.settled) {
    const { rows } = await monitor.query<{ waits: boolean }>(
      `SELECT bool_or(cardinality(pg_blocking_pids(p)) > 0
         OR ($2 AND coalesce((SELECT a.wait_event = 'PgSleep' FROM pg_stat_get_activity(p) a), false))) AS waits
       FROM unnest($1::int[]) p`,
      [client.sessions.map(pidOf), waits === 'all'],
    );
    if (rows[0]?.waits) return;
    await Promise.race([watched, turn()]);
  }
  await watched;
}
