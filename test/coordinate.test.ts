import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { drizzle } from 'drizzle-orm/node-postgres';
import { sql as drizzleSql } from 'drizzle-orm';
import { Kysely, PostgresDialect, sql as kyselySql } from 'kysely';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startRelay, type Relay } from '../infra/local/relay.ts';
import { coordinate, type Coordinator } from '../src/coordinate.ts';
import { defineJob, type JobOptions, type WorkContext } from '../src/job.ts';
import { lockKey } from '../src/lock-name.ts';
import { ConnectionLost } from '../src/postgres/errors.ts';
import { deservesRetry, PermanentError, type RunRecord } from '../src/run.ts';
import { ForbiddenStatement } from '../src/path/statement.ts';
import { WorkIsOver } from '../src/path/transaction.ts';
import { startLag, through as farther } from './bench/lag.ts';
import { coordinatorOn, deliveryFor, keepingLogger, targetOf } from './support/coordinator.ts';
import { freshDatabase, type TestDatabase } from './support/database.ts';
import { startProxy } from './support/proxy.ts';

const noon = '2026-11-29T12:00:00Z';
const one = '2026-11-29T13:00:00Z';

let db: TestDatabase;
let relay: Relay;
let jobs = 0;

beforeAll(async () => {
  db = await freshDatabase({ examples: true });
  relay = await startRelay({ allow: [new URL(db.url).host] });
});
afterAll(async () => {
  await relay.stop();
  await db.drop();
});

function job(work: (context: WorkContext) => Promise<unknown>, options: Partial<JobOptions> = {}) {
  return defineJob({ name: `job-${++jobs}`, work, ...options });
}

async function stored(
  name: string,
): Promise<{ status: string; skip_reason: string | null; attempt: number | null }[]> {
  return (await db.query('SELECT status, skip_reason, attempt FROM cronce.run WHERE job = $1 ORDER BY id', [
    name,
  ])) as never;
}

function latch() {
  let open: () => void = () => undefined;
  const opened = new Promise<void>((resolve) => (open = resolve));
  return { open, opened };
}

const drivers: [string, () => Partial<Coordinator>][] = [
  ['pg', () => ({ target: targetOf(db.url) })],
  ['neon', () => ({ target: targetOf(db.url, 'neon', relay.wsProxy) })],
];

describe.each(drivers)('by %s', (_driver, override) => {
  const run = async (...[task, slot, time = 60_000]: [ReturnType<typeof job>, (string | Date)?, number?]) =>
    coordinate(deliveryFor(task, slot ?? noon), time, coordinatorOn(db.url, override()));

  it('runs a slot once: later deliveries of it are skipped as duplicates, whatever their event id', async () => {
    const task = job(async ({ tx }) => (await tx.query('SELECT 42 AS answer')).rows);
    const first = await run(task);
    expect(first).toMatchObject({
      status: 'succeeded',
      attempt: 1,
      final: true,
      fence: '1',
      output: [{ answer: 42 }],
    });
    const second = await run(task, new Date('2026-11-29T12:00:00Z'));
    expect(second).toMatchObject({
      status: 'skipped',
      skipReason: 'duplicate',
      blockedBy: first.id,
      attempt: null,
    });
    expect(await run(task, one)).toMatchObject({ status: 'succeeded', fence: '2', attempt: 1 });
  });

  it('skips a delivery while another runs, and names the run in the way', async () => {
    const [begun, release] = [latch(), latch()];
    const task = job(async () => {
      begun.open();
      await release.opened;
    });
    const holding = run(task);
    await begun.opened;
    const skipped = await run(task, one);
    release.open();
    const held = await holding;
    expect(skipped).toMatchObject({ status: 'skipped', skipReason: 'held', blockedBy: held.id });
    expect(held.status).toBe('succeeded');
  });

  it('gives one of 25 deliveries at once the slot', async () => {
    const task = job(async () => delay(50));
    const runs = await Promise.all(Array.from({ length: 25 }, () => run(task)));
    expect(runs.filter(({ status }) => status === 'succeeded')).toHaveLength(1);
    expect(runs.filter(({ skipReason }) => skipReason !== null)).toHaveLength(24);
  });

  it('commits what the job wrote together with its success, and nothing of a failure', async () => {
    const write = async ({ tx, slot }: WorkContext) =>
      tx.query('INSERT INTO app.page_view VALUES (now(), $1, $1)', [slot]);
    const good = job(async (context) => (await write(context)).rowCount);
    const bad = job(async (context) => {
      await write(context);
      throw new Error('no');
    });
    await run(good, '2026-01-01T00:00:00Z');
    expect(await run(bad, '2026-01-02T00:00:00Z')).toMatchObject({
      status: 'failed',
      error: { message: 'no' },
    });
    const views = await db.query(`SELECT path FROM app.page_view WHERE path LIKE '2026-01-0%'`);
    expect(views).toEqual([{ path: '2026-01-01T00:00:00Z' }]);
    await db.query(`DELETE FROM app.page_view WHERE path LIKE '2026-01-0%'`);
  });

  it('counts attempts, marks the last as final, and turns what comes after it away', async () => {
    const task = job(async () => Promise.reject(new Error('again')));
    const runs: RunRecord[] = [];
    for (let n = 0; n < 4; n++) runs.push(await run(task));
    expect(runs.map(({ status, attempt, final }) => ({ status, attempt, final }))).toEqual([
      { status: 'failed', attempt: 1, final: false },
      { status: 'failed', attempt: 2, final: false },
      { status: 'failed', attempt: 3, final: true },
      { status: 'skipped', attempt: null, final: null },
    ]);
    expect(runs.map(deservesRetry)).toEqual([true, true, false, false]);
    expect(runs[3]).toMatchObject({ skipReason: 'duplicate', blockedBy: runs[2]?.id });
  });

  it('takes a permanent error for final at once', async () => {
    const failed = await run(job(async () => Promise.reject(new PermanentError('never'))));
    expect(failed).toMatchObject({ status: 'failed', attempt: 1, final: true });
  });

  it('does not let a job succeed that swallowed an SQL error', async () => {
    const task = job(async ({ tx }) => {
      await tx.query('SELECT 1/0').catch(() => undefined);
      return 'fine';
    });
    const failed = await run(task);
    expect(failed).toMatchObject({ status: 'failed', output: null, error: { code: '22012' } });
  });

  it('fails a run whose deferred constraint does not hold', async () => {
    await db.queryAsRole(
      `CREATE TABLE IF NOT EXISTS app.twin (id int PRIMARY KEY, of int REFERENCES app.twin DEFERRABLE INITIALLY DEFERRED)`,
    );
    const failed = await run(job(async ({ tx }) => tx.query('INSERT INTO app.twin VALUES (1, 2)')));
    expect(failed).toMatchObject({ status: 'failed', error: { code: '23503' } });
  });

  it('stops work that ignores its signal at the deadline, and records it in time', async () => {
    const seen: unknown[] = [];
    const workMs = 4_000;
    const task = job(
      async ({ tx, signal }) => {
        signal.addEventListener('abort', () => seen.push((signal.reason as { reason: string }).reason));
        await tx.query('SELECT 1');
        await delay(workMs);
        await tx.query('SELECT 2').catch((error: unknown) => seen.push(error));
      },
      { timeoutMs: 300 },
    );
    const startedAt = performance.now();
    expect(await run(task)).toMatchObject({ status: 'timed_out', final: false, error: { code: 'deadline' } });
    expect(performance.now() - startedAt).toBeLessThan(workMs);
    await expect.poll(() => seen, { timeout: 2 * workMs }).toEqual(['deadline', expect.any(WorkIsOver)]);
  });

  it('takes what is thrown once the time is over for its deadline, also where the process was too busy to say so', async () => {
    const task = job(
      async ({ tx, timeLeftMs }) => {
        await tx.query('SELECT 1');
        while (timeLeftMs() > 0); // no timer can fire
        throw new Error('a statement was cancelled at its time limit');
      },
      { timeoutMs: 300 },
    );
    expect(await run(task)).toMatchObject({ status: 'timed_out', error: { code: 'deadline' } });
  });

  it('stops before Lambda would, however long the job may take, and frees the lock of a long statement', async () => {
    const task = job(async ({ tx }) => tx.query('SELECT pg_sleep(20)'));
    expect(await run(task, noon, 4_600)).toMatchObject({ status: 'timed_out' });
    expect(await run(task, noon, 4_600)).toMatchObject({ status: 'timed_out', attempt: 2 });
  });

  it.each([
    ['undefined', undefined, null],
    ['0', 0, 0],
    ['an empty text', '', ''],
    ['false', false, false],
    ['an empty list', [], []],
    ['a BigInt', { n: 2n ** 64n }, { n: '18446744073709551616' }],
    ['NUL and lone surrogates', ['a\u0000b', '\ud800x'], ['a\ufffdb', '\ufffdx']],
    [
      'a date and a map',
      { at: new Date(0), m: new Map([['k', 1]]) },
      { at: '1970-01-01T00:00:00.000Z', m: { k: 1 } },
    ],
  ])('keeps an output of %s', async (_what, output, kept) => {
    expect(await run(job(async () => output))).toMatchObject({ status: 'succeeded', output: kept });
  });

  it('marks what it cuts of an output', async () => {
    const circle: Record<string, unknown> = { name: 'circle' };
    circle['self'] = circle;
    const deep = Array.from({ length: 40 }).reduce<unknown>((inner) => ({ inner }), 'end');
    const got = await run(job(async () => ({ circle, long: 'x'.repeat(100_000) })));
    expect(JSON.stringify(got.output)).toContain('[cut: circular]');
    expect(JSON.stringify(got.output)).toContain('[cut: 34464 more]');
    expect(JSON.stringify((await run(job(async () => deep))).output)).toContain('[cut: too deep]');
    const huge = await run(job(async () => Array<string>(900).fill('y'.repeat(1_000))));
    expect(huge.status).toBe('succeeded');
    expect(JSON.stringify(huge.output)).toMatch(/^\["y{1000}",.*"\[cut: \d+ more]"]$/);
  });

  it('keeps what an error says, whatever was thrown', async () => {
    // eslint-disable-next-line @typescript-eslint/prefer-promise-reject-errors -- jobs can throw anything
    const fail = async (thrown: unknown) => (await run(job(async () => Promise.reject(thrown)))).error;
    const circular = new Error('outer');
    circular.cause = circular;
    expect(await fail('just text')).toEqual({ name: 'NonError', message: 'just text' });
    expect(await fail(undefined)).toMatchObject({ name: 'NonError', message: 'null' });
    expect(await fail(circular)).toMatchObject({ message: 'outer', cause: { name: 'Cut' } });
    expect(await fail(new AggregateError([new Error('a'), 'b\u0000'], 'both'))).toMatchObject({
      name: 'AggregateError',
      errors: [{ message: 'a' }, { name: 'NonError', message: 'b\ufffd' }],
    });
  });

  it.each([
    'COMMIT',
    ' -- a comment\n /* and */ rollback',
    'COPY app.session TO STDOUT',
    'SET statement_timeout = 0',
    'RESET ALL',
    '*/ COMMIT',
  ])('refuses %j in tx', async (statement) => {
    const failed = await run(job(async ({ tx }) => tx.query(statement)));
    expect(failed).toMatchObject({ status: 'failed', error: { name: new ForbiddenStatement('').name } });
  });

  it('has the server refuse several statements in one text, and allows a semicolon in a text', async () => {
    expect(await run(job(async ({ tx }) => tx.query('SELECT 1; COMMIT')))).toMatchObject({
      status: 'failed',
      error: { code: '42601' },
    });
    const fine = job(async ({ tx }) => (await tx.query(`SELECT 'a;b' AS x, $1::text AS y;`, [';'])).rows);
    expect(await run(fine)).toMatchObject({ output: [{ x: 'a;b', y: ';' }] });
    expect(await run(job(async ({ tx }) => (await tx.query(`SELECT 'a;b' AS x`)).rows))).toMatchObject({
      output: [{ x: 'a;b' }],
    });
  });

  it('survives a parameter that can not be sent', async () => {
    const circle: Record<string, unknown> = {};
    circle['self'] = circle;
    const failed = await run(job(async ({ tx }) => tx.query('SELECT $1::jsonb', [circle])));
    expect(failed).toMatchObject({
      status: 'failed',
      error: { message: expect.stringContaining('circular') as string },
    });
  });

  it('takes Drizzle and Kysely', async () => {
    const task = job(async ({ tx }) => {
      const viaDrizzle = await drizzle(tx).execute(drizzleSql`SELECT ${1}::int + 1 AS n`);
      const kysely = new Kysely<unknown>({
        dialect: new PostgresDialect({ pool: tx }),
      });
      const viaKysely = await kyselySql<{ n: number }>`SELECT ${2}::int + 1 AS n`.execute(kysely);
      return [viaDrizzle.rows, viaKysely.rows];
    });
    expect(await run(task)).toMatchObject({ status: 'succeeded', output: [[{ n: 2 }], [{ n: 3 }]] });
  });

  it('stays out while a client in any language holds the same integer key in a session lock', async () => {
    const key = 4_611_686_018_427_387_905n;
    const other = new pg.Client({ connectionString: db.url });
    await other.connect();
    await other.query('SELECT pg_advisory_lock($1)', [key.toString()]);
    const task = job(async () => 'in', { lock: key });
    expect(await run(task)).toMatchObject({ status: 'skipped', skipReason: 'held', blockedBy: null });
    await other.query('SELECT pg_advisory_unlock($1)', [key.toString()]);
    await other.end();
    expect(await run(task)).toMatchObject({ status: 'succeeded', lockKey: key.toString() });
  });

  it('costs one round trip for a skip and two for a run, once connected; the stamp goes with the goodbye', async () => {
    const server = new URL(db.url);
    const proxy = await startProxy({ targetPort: Number(server.port) });
    const counted = await startRelay({ allow: [`${server.hostname}:${proxy.port}`] });
    const { target } = coordinatorOn(db.url, override());
    const through = coordinatorOn(db.url, {
      target: targetOf(
        proxy.url(db.url),
        target.driver,
        target.driver === 'neon' ? counted.wsProxy : undefined,
      ),
    });
    const task = job(async () => 1);
    const costs: number[] = [];
    const isStamp = (sql: string) => sql.includes('mark_told');
    const asked = () => proxy.queries.filter((sql) => !isStamp(sql)).length;
    for (const slot of [noon, noon, one]) {
      const before = asked();
      await coordinate(deliveryFor(task, slot), 60_000, through);
      costs.push(asked() - before);
    }
    await expect.poll(() => proxy.queries.filter(isStamp)).toHaveLength(costs.length);
    await counted.stop();
    await proxy.stop();
    expect(costs).toEqual([2, 1, 2]);
  });

  it('waits for four flights of a run and three of a skip, from connecting to having closed', async () => {
    const lag = await startLag({ target: Number(new URL(db.url).port), ms: 5 });
    const relayed = await startRelay({ allow: [`127.0.0.1:${lag.port}`] });
    const { driver } = coordinatorOn(db.url, override()).target;
    const target = targetOf(farther(db.url, lag), driver, driver === 'neon' ? relayed.wsProxy : undefined);
    const task = job(async () => 1);
    /** The least of several: what is answered after we have stopped waiting may be counted too, on a busy machine. */
    const flights = async (slots: readonly string[]) => {
      const counts: number[] = [];
      for (const slot of slots) {
        const before = await lag.roundTrips();
        await coordinate(deliveryFor(task, slot), 60_000, coordinatorOn(db.url, { target }));
        counts.push((await lag.roundTrips()) - before);
        await delay(150);
      }
      return Math.min(...counts);
    };
    // TCP, greeting, password with claim, outcome; the stamp is not waited for.
    expect(await flights([noon, one, '2026-11-29T14:00:00Z', '2026-11-29T15:00:00Z'])).toBe(4);
    expect(await flights([noon, noon, noon, noon])).toBe(3);
    await db.assertNoLeaks();
    const told = await db.query(`SELECT count(*)::int AS n FROM cronce.run WHERE job = $1 AND published_at IS NOT NULL`, [task.name]); // prettier-ignore
    expect(told).toEqual([{ n: 8 }]);
    await relayed.stop();
    await lag.stop();
  });

  it('reads the outcome again where the acknowledgement of COMMIT is lost', async () => {
    const server = new URL(db.url);
    const proxy = await startProxy({ targetPort: Number(server.port) });
    const counted = await startRelay({ allow: [`${server.hostname}:${proxy.port}`] });
    const { driver } = coordinatorOn(db.url, override()).target;
    const target = targetOf(proxy.url(db.url), driver, driver === 'neon' ? counted.wsProxy : undefined);
    const swallowed = proxy.swallowReplyTo('RELEASE SAVEPOINT');
    const done = coordinate(
      deliveryFor(
        job(async () => 'kept'),
        noon,
      ),
      60_000,
      coordinatorOn(db.url, { target }),
    );
    await swallowed;
    expect(await done).toMatchObject({ status: 'succeeded', output: 'kept' });
    await counted.stop();
    await proxy.stop();
  });

  it('knows of a connection that is cut in the middle, and runs the slot again', async () => {
    const server = new URL(db.url);
    const proxy = await startProxy({ targetPort: Number(server.port) });
    const counted = await startRelay({ allow: [`${server.hostname}:${proxy.port}`] });
    const { driver } = coordinatorOn(db.url, override()).target;
    const target = targetOf(proxy.url(db.url), driver, driver === 'neon' ? counted.wsProxy : undefined);
    const reasons: unknown[] = [];
    const task = job(async ({ tx, signal, attempt }) => {
      signal.addEventListener('abort', () =>
        reasons.push((signal.reason as Error & { reason: string }).reason),
      );
      await tx.query(`INSERT INTO app.page_view VALUES (now(), 'cut', 'cut')`);
      if (attempt === 1) proxy.cut();
      await tx.query('SELECT 1');
    });
    const lost = await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url, { target }));
    expect(lost).toMatchObject({ status: 'lost', final: false, error: { code: 'lock_lost' } });
    expect(reasons).toEqual(['lock_lost']);
    expect(await run(task)).toMatchObject({ status: 'succeeded', attempt: 2 });
    expect(await db.query(`SELECT count(*)::int AS n FROM app.page_view WHERE path = 'cut'`)).toEqual([
      { n: 1 },
    ]);
    await db.query(`DELETE FROM app.page_view WHERE path = 'cut'`);
    await counted.stop();
    await proxy.stop();
  });
});

it('logs one structured line an outcome, without params and output', async () => {
  const logger = keepingLogger();
  const task = job(async () => ({ secret: 'in the output' }));
  await coordinate(
    deliveryFor(task, noon, { params: { secret: 1 } }),
    60_000,
    coordinatorOn(db.url, { logger }),
  );
  expect(logger.lines).toEqual([
    {
      level: 'info',
      message: `${task.name} succeeded`,
      fields: { run: expect.objectContaining({ status: 'succeeded', slot: noon }) as unknown },
    },
  ]);
  expect(JSON.stringify(logger.lines)).not.toContain('secret');
});

it('settles a predecessor whose backend died, and says so', async () => {
  const logger = keepingLogger();
  const [begun, release] = [latch(), latch()];
  const task = job(async ({ attempt, signal }) => {
    if (attempt > 1) return;
    begun.open();
    signal.addEventListener('abort', release.open);
    await release.opened;
  });
  const first = coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
  await begun.opened;
  await db.query(
    `SELECT pg_terminate_backend(backend_pid) FROM cronce.run WHERE job = $1 AND status = 'running'`,
    [task.name],
  );
  expect(await first).toMatchObject({ status: 'lost', final: false });
  expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url, { logger }))).toMatchObject({
    status: 'succeeded',
    attempt: 2,
    fence: '2',
  });
});

it('settles a start record that was left behind, with the next claim under its lock', async () => {
  const logger = keepingLogger();
  const task = job(async () => 1);
  await db.query(`INSERT INTO cronce.lock VALUES ($1, $2, 7, '00000000-0000-7000-8000-000000000001')`, [
    lockKey(task.name).toString(),
    task.name,
  ]);
  await db.query(
    `INSERT INTO cronce.run (id, job, slot, scheduled_for, trigger, status, lock_name, lock_key, fence, backend_pid, attempt,
       max_attempts, lease_ms, received_at, claimed_at, started_at)
     VALUES ('00000000-0000-7000-8000-000000000001', $2, $3::text, $3::text::timestamptz, 'rule', 'running', $2, $1, 7, 1, 1, 3, 15000,
       now(), now(), now())`,
    [lockKey(task.name).toString(), task.name, noon],
  );
  expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url, { logger }))).toMatchObject({
    status: 'succeeded',
    fence: '8',
    attempt: 2,
  });
  expect((await stored(task.name)).map(({ status }) => status)).toEqual(['lost', 'succeeded']);
  expect(logger.lines.map(({ message }) => message)).toEqual([`${task.name} lost`, `${task.name} succeeded`]);
});

it('gives a due slot its run though a duplicate of another slot is being turned away that very moment', async () => {
  const task = job(async () => 1);
  const blocker = new pg.Client({ connectionString: db.url });
  await blocker.connect();
  await blocker.query('BEGIN');
  await blocker.query('SELECT pg_advisory_xact_lock($1)', [lockKey(task.name).toString()]);
  const due = coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
  await delay(60);
  await blocker.query('COMMIT');
  await blocker.end();
  expect(await due).toMatchObject({ status: 'succeeded' });
});

it('is held, and not left behind, where a stranger gets the lock between start record and lock', async () => {
  const task = job(async () => 1);
  const key = lockKey(task.name).toString();
  await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url));
  const [gate, stranger] = [
    new pg.Client({ connectionString: db.url }),
    new pg.Client({ connectionString: db.url }),
  ];
  await Promise.all([gate.connect(), stranger.connect()]);
  await gate.query('BEGIN');
  await gate.query('SELECT 1 FROM cronce.lock WHERE key = $1 FOR UPDATE', [key]);
  const claiming = coordinate(deliveryFor(task, one), 60_000, coordinatorOn(db.url));
  const waiting = async (what: string) =>
    expect
      .poll(async () =>
        db.query(`SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = $1`, [
          what,
        ]),
      )
      .toHaveLength(1);
  await waiting('transactionid'); // the claim has the lock and waits for its fence
  const got = stranger.query('SELECT pg_advisory_lock($1)', [key]);
  await waiting('advisory');
  await gate.query('COMMIT');
  await got;
  expect(await claiming).toMatchObject({ status: 'skipped', skipReason: 'held', blockedBy: null });
  await Promise.all([gate.end(), stranger.end()]);
  expect(await stored(task.name)).toHaveLength(2);
});

it('sets the lease again with each heartbeat, whatever the job has set', async () => {
  const task = job(
    async ({ tx }) => {
      await tx.query(`SET LOCAL idle_in_transaction_session_timeout = 0`);
      await expect
        .poll(async () => (await tx.query('SHOW idle_in_transaction_session_timeout')).rows[0], {
          timeout: 10_000,
        })
        .toEqual({ idle_in_transaction_session_timeout: '2s' });
    },
    { leaseMs: 2_000 },
  );
  expect(await coordinate(deliveryFor(task, noon), 60_000, coordinatorOn(db.url))).toMatchObject({
    status: 'succeeded',
  });
});

describe('a server that can not be used', () => {
  /** @param timeLeftMs for half of which a closed port is asked again */
  const failing = async (url: string, timeLeftMs = 60_000) =>
    coordinate(
      deliveryFor(
        job(async () => 1),
        noon,
      ),
      timeLeftMs,
      coordinatorOn(url),
    ).catch((error: unknown) => error as Error);

  it('says what is wrong and what to do, in one line, without the password', async () => {
    const wrongPassword = db.url.replace(/:[^:@/]+@/, ':hunter2hunter2@');
    const nobody = db.url.replace(/:\d+\//, ':1/');
    const elsewhere = db.url.replace(/\/[^/]+$/, '/nowhere');
    const urls = [wrongPassword, nobody, elsewhere];
    const errors = (await Promise.all(urls.map(async (url) => failing(url, 10_000)))) as Error[];
    expect(errors.map(({ name }) => name)).toEqual(['AccessRefused', 'CannotConnect', 'AccessRefused']);
    for (const error of errors) {
      expect(error.message).not.toContain('\n');
      expect(error.message).toContain('DATABASE_URL');
      expect(JSON.stringify([error.message, error.stack, String(error.cause)])).not.toContain('hunter2');
    }
  });

  it('says so where the schema is missing, too old, or newer than this code', async () => {
    const empty = await freshDatabase({ migrated: false });
    expect(await failing(empty.url)).toMatchObject({
      name: 'SchemaMismatch',
      message: expect.stringContaining('npm run migrate') as string,
    });
    await empty.drop();
    const newer = await freshDatabase();
    await newer.query(`INSERT INTO cronce.migration (version, name) VALUES (999, '0999_future')`);
    expect(await failing(newer.url)).toMatchObject({
      name: 'SchemaMismatch',
      message: expect.stringContaining('deploy the newer') as string,
    });
    await newer.query(`UPDATE cronce.migration SET breaking = false WHERE version = 999`);
    expect(await failing(newer.url)).toMatchObject({ status: 'succeeded' });
    await newer.query(`DELETE FROM cronce.migration`);
    await newer.query(`INSERT INTO cronce.migration (version, name) VALUES (0, '0000_past')`);
    expect(await failing(newer.url)).toMatchObject({
      name: 'SchemaMismatch',
      message: expect.stringContaining('npm run migrate') as string,
    });
    await newer.drop();
  });

  it('gives up a server that takes the connection and never answers', async () => {
    const proxy = await startProxy({ targetPort: Number(new URL(db.url).port) });
    proxy.partition({ newConnections: 'hang' });
    const target = { ...targetOf(proxy.url(db.url)), connectTimeoutMs: 300 };
    const error = await coordinate(
      deliveryFor(
        job(async () => 1),
        noon,
      ),
      60_000,
      coordinatorOn('', { target }),
    ).catch((thrown: unknown) => thrown);
    await proxy.stop();
    expect(error).toMatchObject({ name: 'CannotConnect' });
    expect(error).not.toBeInstanceOf(ConnectionLost);
  });
});
