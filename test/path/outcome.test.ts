import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { coordinate } from '../../src/coordinate.ts';
import { Stop, type WorkResult } from '../../src/path/ending.ts';
import { defineJob, type JobOptions, type WorkContext } from '../../src/job.ts';
import { holdLock, lockKey } from '../../src/path/lock.ts';
import { recordOutcome, type RecordOptions } from '../../src/path/outcome.ts';
import { ConnectionLost, NoAnswer } from '../../src/postgres/errors.ts';
import { toRecord } from '../../src/postgres/record.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';
import { performWork } from '../../src/path/work.ts';
import { coordinatorOn, deliveryFor, keepingLogger, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { startProxy } from '../support/proxy.ts';
import { after, holding, noon, stage, type Columns, type Stage } from '../support/rows.ts';

/** How the steps around the work keep their promises: each on its own where it can be, else through a whole run. */
const one = '2026-11-29T13:00:00Z';

let db: TestDatabase;
let jobs = 0;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

function job(work: (context: WorkContext) => Promise<unknown>, options: Partial<JobOptions> = {}) {
  return defineJob({ name: `whole-${++jobs}`, leaseMs: 2_000, work, ...options });
}

async function started(s: Stage, row: Columns = {}): Promise<RunRecord> {
  const id = await s.run(row);
  return toRecord(await s.askOf<RunRecord>(id, 'record(r)'));
}

describe('the record of a run whose session is lost', () => {
  const asked = { cancel_requested_at: after(-1_000), cancel_requested_by: 'ann' };
  const threw: WorkResult = { kind: 'threw', error: new Error('no') };
  const returned: WorkResult = { kind: 'returned', value: 1 };
  const stopped = (reason: 'lock_lost' | 'deadline', cutOff = false): WorkResult => ({
    ...{ kind: 'stopped', stop: new Stop(reason, 'over'), cutOff },
  });

  it.each<[string, WorkResult, Columns, readonly [status: string, final: boolean, delay: string]]>([
    ['work that returned is lost: its writes are', returned, {}, ['lost', false, 'none']],
    ['to be held', returned, { after_lost: 'hold' }, ['lost', true, 'none']],
    ['at the last attempt', returned, { attempt: 3 }, ['lost', true, 'none']],
    ['to be cancelled', returned, asked, ['cancelled', true, 'none']],
    ['work that threw', threw, {}, ['failed', false, 'none']],
    ['work that threw, where a lost one is held', threw, { after_lost: 'hold' }, ['failed', false, 'none']],
    ['work that threw at the last attempt', threw, { attempt: 3 }, ['failed', true, 'none']],
    ['work that threw as a cancel was asked', threw, asked, ['cancelled', true, 'none']],
    ['work that said that its session is gone', { kind: 'threw', error: new ConnectionLost('x') }, {}, ['lost', false, 'none']], // prettier-ignore
    ['work that stopped at its deadline', stopped('deadline'), {}, ['timed_out', false, 'none']],
    ['work that was cut off may still go on', stopped('lock_lost', true), {}, ['lost', false, 'begun']],
    ['the same without a delay', stopped('lock_lost', true), { lock_delay_ms: 0 }, ['lost', false, 'none']],
    ['work that stopped by itself', stopped('lock_lost'), {}, ['lost', false, 'none']],
  ])('%s', async (_what, result, row, [status, final, delayed]) => {
    const s = stage(db);
    const run = await started(s, row);
    const session = await Session.open(targetOf(db.url));
    session.destroy(new ConnectionLost('cut'));
    expect(await recordOutcome(result, recording(run, session))).toMatchObject({
      status,
      final,
      output: null,
    });
    const found = (await s.row(run.id))['delay'];
    expect(Number(found) > 10 ? 'begun' : found).toBe(delayed);
  });

  it('what was settled meanwhile stays, and says so', async () => {
    const s = stage(db);
    const run = await started(s);
    await s.ask('settle($1)', { id: run.id, status: 'cancelled', final: true });
    const session = await Session.open(targetOf(db.url));
    session.destroy(new ConnectionLost('cut'));
    expect(await recordOutcome(returned, recording(run, session))).toMatchObject({ status: 'cancelled' });
    expect((await s.row(run.id))['delay'], 'it has stopped').toBe('none');
  });
});

function recording(run: RunRecord, session: Session): RecordOptions {
  return {
    ...{ run, session, openSession: async () => Session.open(targetOf(db.url)) },
    ...{ workLeftMs: () => 10_000, timeLeftMs: () => 20_000, now: undefined },
  };
}

it('a COMMIT that is answered by ROLLBACK is no success, whatever was said before it', async () => {
  const s = stage(db);
  const run = await started(s);
  const session = await Session.open(targetOf(db.url));
  const said = { command: 'SELECT', rowCount: 1, fields: [{ name: 'finished' }], rows: [{ finished: run }] };
  const rolledBack = { command: 'ROLLBACK', rowCount: null, fields: [], rows: [] };
  const answer = [said, rolledBack] as unknown as Awaited<ReturnType<Session['send']>>;
  vi.spyOn(session, 'send').mockResolvedValueOnce(answer);
  expect(await recordOutcome({ kind: 'returned', value: 1 }, recording(run, session))).toMatchObject({
    status: 'failed',
  });
  await session.close();
});

it('a claim that can’t get through leaves a record, and its slot owed', async () => {
  const task = job(async () => 1);
  await db.query(`CREATE FUNCTION no_start() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN RAISE EXCEPTION USING ERRCODE = '55P03', MESSAGE = 'somebody''s lock'; END $$;
    CREATE TRIGGER no_start BEFORE INSERT ON cronce.run FOR EACH ROW
      WHEN (NEW.status = 'running' AND NEW.job = '${task.name}') EXECUTE FUNCTION no_start()`);
  const run = await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
  await db.query('DROP TRIGGER no_start ON cronce.run');
  expect(run).toMatchObject({
    status: 'skipped',
    skipReason: 'held',
    final: false,
    error: { name: 'NotClaimed' },
  });
  expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url))).toMatchObject({
    ...{ status: 'succeeded', attempt: 1 },
  });
});

it('a heartbeat hears that its run was settled by someone else', async () => {
  const reasons: unknown[] = [];
  const task = job(async ({ signal, runId }) => {
    await db.query(
      `UPDATE cronce.run SET status = 'lost', final = false, finished_at = now() WHERE id = $1`,
      [runId],
    );
    await delay(20_000, undefined, { signal }).catch(() => undefined);
    reasons.push(signal.reason);
  });
  expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url))).toMatchObject({
    status: 'lost',
  });
  expect(reasons).toMatchObject([
    { reason: 'lock_lost', message: expect.stringContaining('on record as lost') as string },
  ]);
});

it('what is ours is done as ourselves, whatever the job has become: heartbeats, the outcome, fenced', async () => {
  const role = `narrow_${db.name}`;
  await db.query(`CREATE ROLE ${role}; GRANT ${role} TO ${db.role.name}`);
  const task = job(async ({ tx, fenced }) => {
    await tx.query(`SET LOCAL ROLE ${role}`);
    await delay(1_500); // two heartbeats at least
    await fenced((own) => own.query(`SET LOCAL ROLE ${role}`));
    return (await tx.query('SELECT current_user AS me')).rows;
  });
  expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url))).toMatchObject({
    ...{ status: 'succeeded', output: [{ me: role }], error: null },
  });
  await db.query(`DROP ROLE ${role}`);
});

it('a statement of fenced ends with its run, and its work so by itself: nobody has to wait for it', async () => {
  const task = job(async ({ fenced }) => fenced((own) => own.query('SELECT pg_sleep(20)')));
  const running = coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
  const asleep = () =>
    db.query(`SELECT 1 FROM pg_stat_activity WHERE datname = $1 AND query = 'SELECT pg_sleep(20)' AND state = 'active'`, [db.name]); // prettier-ignore
  await expect.poll(asleep).toHaveLength(1);
  await db.query(`SELECT cronce.request_cancel(id, 'ann') FROM cronce.run WHERE job = $1`, [task.name]);
  const run = await running;
  expect(run).toMatchObject({ status: 'cancelled', error: { message: 'cancelled by ann' } });
  expect(await db.query('SELECT delay_until FROM cronce.run WHERE id = $1', [run.id])).toEqual([
    { delay_until: null },
  ]);
});

it.each([
  [undefined, 2_000],
  [0, 0],
  [1_000, 2_000],
  [5_000, 5_000],
])(
  'a lock delay is off, or covers the deployment’s lease at least: %s asked for',
  async (asked, lockDelayMs) => {
    const delayed = asked === undefined ? {} : { lockDelayMs: asked };
    const task = defineJob({ name: `delayed-${++jobs}`, work: async () => 1, ...delayed });
    expect(
      await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url, { leaseMs: 2_000 })),
    ).toMatchObject({
      lockDelayMs,
    });
  },
);

describe('deferred constraints', () => {
  beforeAll(async () => {
    await db.query(`CREATE TABLE public.slow (ms int); GRANT ALL ON public.slow TO ${db.role.name};
      CREATE FUNCTION public.wait_for_it() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_catalog.pg_sleep(NEW.ms / 1000.0); RETURN NULL; END $$;
      CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON public.slow DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION public.wait_for_it()`);
  });

  it.each<[string, number, Partial<JobOptions>, Partial<RunRecord>]>([
    ['may take longer than a lease', 2_500, {}, { status: 'succeeded' }],
    ['may not take longer than the work', 3_000, { timeoutMs: 1_000 }, { status: 'timed_out' }],
  ])('are checked in the work’s time: they %s', async (_what, ms, options, outcome) => {
    const task = job(async ({ tx }) => tx.query('INSERT INTO public.slow VALUES ($1)', [ms]), options);
    expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url))).toMatchObject(outcome);
  });
});

it('the lease counts from the sending of what was answered, however late its answer', async () => {
  const [leaseMs, lateMs, vouchMs] = [6_000, 1_500, 4_500];
  const s = stage(db);
  const run = await started(s, { lease_ms: leaseMs });
  const proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
  const session = await Session.open(targetOf(proxy.url(db.url)));
  proxy.stall('toClient');
  const sentAt = performance.now();
  const answered = session.send('BEGIN');
  await delay(lateMs);
  proxy.resume('toClient');
  await answered;
  proxy.stall();
  const hold = { runId: run.id, pid: 0, lockKey: s.key, leaseMs };
  const lock = await holdLock(session, { ...hold, openWatch: async () => Session.open(targetOf(db.url)) });
  const lostAt = await new Promise<number>((resolve) => {
    lock.signal.addEventListener('abort', () => {
      resolve(performance.now());
    });
  });
  expect(lock.signal.reason).toMatchObject({ reason: 'lock_lost' });
  expect(lostAt - sentAt).toBeGreaterThanOrEqual(vouchMs - 50);
  expect(lostAt - sentAt, 'ms after the sending').toBeLessThan(vouchMs + lateMs - 300);
  await lock.letGo();
  await session.close();
  await proxy.stop();
});

describe('work', () => {
  it.each([0, 200])('does not begin once it was told to stop (lock delay %d ms)', async (restMs) => {
    const s = stage(db);
    const run = await started(s);
    const session = await Session.open(targetOf(db.url));
    const stop = new Stop('lock_lost', 'gone');
    const abort = new AbortController();
    if (restMs === 0) abort.abort(stop);
    else
      setTimeout(() => {
        abort.abort(stop);
      }, restMs / 10);
    let began = false;
    const result = await performWork({
      ...{ run, session, pid: 0, restMs, timeMs: 1_000, graceMs: 100, logger: keepingLogger() },
      lock: { signal: abort.signal, check: () => undefined },
      openSession: async () => Session.open(targetOf(db.url)),
      work: () => Promise.resolve((began = true)),
    });
    expect(result).toMatchObject({ kind: 'stopped', stop });
    expect(began).toBe(false);
    await session.close();
  });

  it('has no tx, and no fenced, once it has returned', async () => {
    let late: WorkContext | undefined;
    const task = job(async (context) => {
      late = context;
      await context.tx.query('SELECT 1');
    });
    expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url))).toMatchObject({
      status: 'succeeded',
    });
    await expect(late?.tx.query('SELECT 1')).rejects.toMatchObject({ name: 'WorkIsOver' });
    await expect(late?.fenced((tx) => tx.query('SELECT 1'))).rejects.toMatchObject({ name: 'WorkIsOver' });
    expect(() => late?.check()).toThrow(expect.objectContaining({ name: 'WorkIsOver' }) as Error);
  });

  it('has one idempotency key a slot, whatever the attempt', async () => {
    const keys: unknown[] = [];
    const task = job(({ idempotencyKey, attempt }) => {
      keys.push([attempt, idempotencyKey]);
      return Promise.reject(new Error('no'));
    });
    for (const slot of [noon, noon, one])
      await coordinate(deliveryFor(task, slot), 60_000, coordinatorOn(db.url));
    const key = (slot: string) => `${task.name}/${slot}`;
    expect(keys).toEqual([
      [1, key(noon)],
      [2, key(noon)],
      [1, key(one)],
    ]);
  });

  it.each([
    'COMMIT',
    'END',
    'ROLLBACK',
    'ABORT',
    'end work',
    'ABORT AND CHAIN',
    'PREPARE TRANSACTION $$x$$',
    'ROLLBACK TO work',
  ])('can’t end the lock’s transaction, and the lock with it: %s', async (statement) => {
    const held: unknown[] = [];
    const task = job(async ({ tx }) => {
      await tx.query(statement).catch((error: unknown) => held.push((error as Error).name));
      held.push(...(await db.query('SELECT 1 FROM cronce.held_keys() WHERE key = $1', [lockKey(task.name).toString()]))); // prettier-ignore
    });
    await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
    expect(held).toEqual(['ForbiddenStatement', { '?column?': 1 }]);
  });
});

describe('before the kill', () => {
  it('a claim that the server does not answer is given up', async () => {
    const proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
    const task = job(async () => 1);
    const silent = proxy.waitForQuery('cronce.claim', { hold: true });
    const startedAt = performance.now();
    const end = coordinate(deliveryFor(task, noon), 3_000, coordinatorOn(proxy.url(db.url)));
    end.catch(() => undefined);
    await silent;
    await expect(end).rejects.toBeInstanceOf(NoAnswer);
    expect(performance.now() - startedAt).toBeLessThan(5_000);
    await proxy.stop();
  });

  it('a wait for the lock is given up, and recorded', async () => {
    const task = job(async () => 1, { overlap: 'wait', waitMs: 60_000 });
    await holding(db, { keys: [lockKey(task.name).toString()] }, async () => {
      const startedAt = performance.now();
      expect(await coordinate(deliveryFor(task, noon), 7_000, coordinatorOn(db.url))).toMatchObject({
        status: 'skipped',
        skipReason: 'held',
      });
      expect(performance.now() - startedAt).toBeLessThan(7_000);
    });
  });

  it('work is stopped with enough time left for its record', async () => {
    let stoppedAt = 0;
    const task = job(async ({ signal }) => {
      await delay(20_000, undefined, { signal }).catch(() => undefined);
      stoppedAt = performance.now();
    });
    const startedAt = performance.now();
    expect(await coordinate(deliveryFor(task, noon), 6_000, coordinatorOn(db.url))).toMatchObject({
      status: 'timed_out',
    });
    expect(stoppedAt - startedAt, 'at least 4 s are kept for it').toBeLessThan(2_000 + 1_500);
  });
});

describe('a lock that is shared', () => {
  it('with places, and waited for: duplicates of a slot don’t work side by side', async () => {
    let inside = 0;
    let most = 0;
    let goOn: () => void = () => undefined;
    const goneOn = new Promise<void>((resolve) => (goOn = resolve));
    const task = job(
      async () => {
        most = Math.max(most, ++inside);
        await goneOn;
        inside -= 1;
      },
      { overlap: 'wait', waitMs: 10_000, places: 2 },
    );
    const runOnce = () => coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
    const first = runOnce();
    await expect.poll(() => inside).toBe(1);
    const second = runOnce();
    const claims = () =>
      db.query(`SELECT 1 FROM pg_stat_activity WHERE datname = $1 AND query LIKE '%cronce.claim(%' AND state = 'active' AND pid <> pg_backend_pid()`, [db.name]); // prettier-ignore
    await expect.poll(claims, { interval: 10 }).toHaveLength(1);
    await delay(100);
    goOn();
    expect([(await first).status, (await second).skipReason]).toEqual(['succeeded', 'duplicate']);
    expect(most).toBe(1);
  });

  it('by several jobs: replace ends no other job’s run', async () => {
    let goOn: () => void = () => undefined;
    const goneOn = new Promise<void>((resolve) => (goOn = resolve));
    const shared = { overlap: 'replace', waitMs: 300, lock: 'of-several-jobs' } as const;
    const [first, second] = [job(async () => goneOn, shared), job(async () => 'second', shared)];
    const running = coordinate(deliveryFor(first, noon), 60_000, coordinatorOn(db.url));
    await expect
      .poll(() => db.query(`SELECT 1 FROM cronce.run WHERE job = $1 AND status = 'running'`, [first.name]))
      .toHaveLength(1);
    expect(await coordinate(deliveryFor(second, one), 60_000, coordinatorOn(db.url))).toMatchObject({
      skipReason: 'held',
    });
    goOn();
    expect(await running).toMatchObject({ status: 'succeeded', cancelRequestedBy: null });
  });
});

it('a lock that is named on purpose is held against clients in any language, and says so', async () => {
  const task = job(async () => 1, { lock: 4_712n });
  const stranger = new pg.Client({ connectionString: db.url });
  await stranger.connect();
  await stranger.query('SELECT pg_advisory_lock(4712)');
  expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url))).toMatchObject({
    skipReason: 'held',
    blockedBy: null,
  });
  await stranger.query('SELECT pg_advisory_lock_shared(0, 4713)');
  const other = job(async () => 1, { lock: 4_713n });
  expect(
    await coordinate(deliveryFor(other, noon), 60_000, coordinatorOn(db.url)),
    'the space of two integers is another',
  ).toMatchObject({ status: 'succeeded' });
  await stranger.end();
});
