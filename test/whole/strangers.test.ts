/** The job's code, the database's defaults and the process's parsers are none of ours. The rest of the suite has the defaults of bed.ts. */
import { setTimeout as delay } from 'node:timers/promises';
import * as neon from '@neondatabase/serverless';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { startRelay, type Relay } from '../../infra/local/relay.ts';
import { cancelRun } from '../../src/path/cancel.ts';
import { coordinate, type Coordinator } from '../../src/coordinate.ts';
import { createApp } from '../../src/http/app.ts';
import {
  defineJob,
  defineJobs,
  type Job,
  type JobOptions,
  type Transaction,
  type WorkContext,
} from '../../src/job.ts';
import type { DriverName } from '../../src/postgres/driver.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';
import { sweepJob } from '../../src/sweep/sweep.ts';
import type { RunRequest } from '../../src/path/trigger.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { jobs, makeEveryOutcome, report, silent, tidy } from '../support/runs.ts';

const token = 'run-token-0123456789';
const slot = '2026-11-29T12:00:00Z';

let db: TestDatabase;
let relay: Relay;
let failed: string;
beforeAll(async () => {
  db = await freshDatabase();
  await makeEveryOutcome(db);
  const [run] = await db.query(`SELECT id FROM cronce.run WHERE status = 'failed' ORDER BY id LIMIT 1`);
  failed = String(run?.['id']);
  relay = await startRelay({ allow: [new URL(db.url).host] });
});
afterAll(async () => {
  await relay.stop();
  await db.drop();
});

function appOn(url: string, driver: DriverName = 'pg') {
  return createApp({
    registry: jobs,
    readTokens: [],
    runTokens: [token],
    openSession: async () =>
      Session.open(targetOf(url, driver, driver === 'neon' ? relay.wsProxy : undefined)),
    startRun: async () => undefined,
    now: () => new Date(slot),
    logger: silent,
  });
}

async function answer(app: ReturnType<typeof appOn>, path: string, method = 'GET') {
  const response = await app.request(path, { method, headers: { authorization: `Bearer ${token}` } });
  return { path, status: response.status, body: await response.text() };
}

/** What each route that reads says. */
async function readAll(app: ReturnType<typeof appOn>) {
  const filtered = '/runs?job=tidy&status=skipped&reason=duplicate';
  const paths = ['/', '/jobs', '/jobs/tidy', '/runs', filtered, `/runs/${failed}`, '/healthz'];
  return Promise.all(paths.map(async (path) => answer(app, path)));
}

/** bool, int2, int4, int8, text, json, jsonb, uuid, timestamptz, date, text[], uuid[], void, unknown. */
const types = [16, 21, 23, 20, 25, 114, 3802, 2950, 1184, 1082, 1009, 2951, 2278, 705];

interface Parsers {
  getTypeParser(type: number): (text: string) => unknown;
  setTypeParser(type: number, parse: (text: string) => unknown): void;
}

/** Until the test has ended. */
function makeOdd(parsers: Parsers): void {
  for (const type of types) {
    const usual = parsers.getTypeParser(type);
    parsers.setTypeParser(type, (text: string) => ({ odd: text.length }));
    onTestFinished(() => parsers.setTypeParser(type, usual));
  }
}

describe.each<[DriverName, Parsers]>([
  ['pg', pg.types],
  ['neon', neon.types],
])('whatever the process has made of the parsers of %s', (driver, parsers) => {
  it('what is read and changed is the same', async () => {
    const app = appOn(db.url, driver);
    const usual = await readAll(app);
    expect(usual.filter(({ status }) => status !== 200)).toEqual([]);
    makeOdd(parsers);
    expect(await readAll(app)).toEqual(usual);
    expect(await answer(app, '/jobs/report/pause', 'POST')).toMatchObject({
      status: 200,
      body: expect.stringMatching(/"job":"report","paused":\{"at":"\d{4}-\d\d-\d\dT/) as string,
    });
    expect(await answer(app, '/jobs/report/resume', 'POST')).toMatchObject({
      status: 200,
      body: '{"job":"report","paused":null}',
    });
  });

  it('a delivery succeeds, and its duplicate is one', async () => {
    makeOdd(parsers);
    const target = targetOf(db.url, driver, driver === 'neon' ? relay.wsProxy : undefined);
    const delivery = deliveryFor(report, slot, {
      params: { end: 'return' },
      slot: `manual:${driver}`,
      byHand: true,
    });
    const deliver = async () => coordinate(delivery, 60_000, coordinatorOn(db.url, { target }));
    expect(await deliver()).toMatchObject({ status: 'succeeded', attempt: 1, output: { done: 1 } });
    expect(await deliver()).toMatchObject({ status: 'skipped', skipReason: 'duplicate' });
  });
});

describe('in a database that is read-only unless asked', () => {
  let readOnly: TestDatabase;
  beforeAll(async () => {
    readOnly = await freshDatabase();
    await readOnly.query(`ALTER DATABASE ${readOnly.name} SET default_transaction_read_only = on`);
  });
  afterAll(async () => readOnly.drop());

  it('jobs are paused and resumed, and everything can be read', async () => {
    const app = appOn(readOnly.url);
    expect(await answer(app, '/jobs/tidy/pause', 'POST')).toMatchObject({ status: 200 });
    expect(await answer(app, '/jobs/tidy')).toMatchObject({
      status: 200,
      body: expect.stringContaining('"paused":{"at":') as string,
    });
    expect(await answer(app, '/jobs/tidy/resume', 'POST')).toMatchObject({ status: 200 });
    for (const path of ['/', '/jobs', '/runs', '/healthz'])
      expect(await answer(app, path)).toMatchObject({ status: 200 });
  });

  it('a delivery runs', async () => {
    const delivery = deliveryFor(tidy, slot, { params: { end: 'return' } });
    expect(await coordinate(delivery, 60_000, coordinatorOn(readOnly.url))).toMatchObject({
      status: 'succeeded',
    });
  });
});

it('a read does not wait for others’ serializable transactions to end', async () => {
  const strict = await freshDatabase();
  await strict.query(`ALTER DATABASE ${strict.name} SET default_transaction_read_only = on`);
  const other = new pg.Client({ connectionString: strict.superuserUrl });
  await other.connect();
  await other.query('BEGIN ISOLATION LEVEL SERIALIZABLE, READ WRITE; SELECT count(*) FROM cronce.run');
  await other.query(`UPDATE cronce.job SET name = name`);
  expect(await answer(appOn(strict.url), '/runs')).toMatchObject({ status: 200 });
  await other.query('ROLLBACK');
  await other.end();
  await strict.drop();
});

// --- what the job does inside our transaction ---------------------------------------------------

let made = 0;

function jobOf(work: (context: WorkContext) => Promise<unknown>, options: Partial<JobOptions> = {}): Job {
  return defineJob({ name: `job-${++made}`, leaseMs: 3_000, work, ...options });
}

async function run(job: Job, coordinator: Coordinator = coordinatorOn(db.url)): Promise<RunRecord> {
  return coordinate(deliveryFor(job, slot), 60_000, coordinator);
}

describe('a database whose transactions may take two seconds', () => {
  it('has no effect on long work, on fenced, nor on waiting for the lock', async (context) => {
    const brief = await freshDatabase();
    onTestFinished(async () => brief.drop());
    const known = await brief.query(`SELECT FROM pg_settings WHERE name = 'transaction_timeout'`);
    if (known.length === 0) context.skip('a setting from version 17 on');
    await brief.query(`ALTER DATABASE ${brief.name} SET transaction_timeout = '2s'`);
    const asleep = async ({ query }: Pick<Transaction, 'query'>) => query('SELECT pg_sleep(4)');
    const first = jobOf(async ({ tx }) => asleep(tx), { lock: 'shared' });
    const waits = jobOf(async () => 1, { lock: 'shared', overlap: 'wait', waitMs: 20_000 });
    const quiet = jobOf(async () => delay(4_000));
    const fences = jobOf(async ({ fenced }) => fenced(async (tx) => asleep(tx)));
    const on = coordinatorOn(brief.url);
    const standing = async () => brief.query(`SELECT FROM cronce.run WHERE status = 'running'`);
    const runs = [first, quiet, fences].map(async (job) => run(job, on));
    await expect.poll(standing, { timeout: 5_000 }).toHaveLength(3);
    const all = await Promise.all([...runs, run(waits, on)]);
    expect(all.map(({ status, error }) => [status, error])).toEqual(Array(4).fill(['succeeded', null]));
  });
});

const drivers: [DriverName, () => Coordinator][] = [
  ['pg', () => coordinatorOn(db.url)],
  ['neon', () => coordinatorOn(db.url, { target: targetOf(db.url, 'neon', relay.wsProxy) })],
];

describe.each(drivers)('an error that sounds like a lost session, by %s', (_driver, coordinator) => {
  beforeAll(async () => {
    await db.query(`CREATE EXTENSION IF NOT EXISTS postgres_fdw;
      CREATE SERVER IF NOT EXISTS nowhere FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '1', dbname 'x');
      CREATE USER MAPPING IF NOT EXISTS FOR PUBLIC SERVER nowhere OPTIONS (user 'x', password 'x');
      CREATE FOREIGN TABLE IF NOT EXISTS far (id int) SERVER nowhere; GRANT SELECT ON far TO PUBLIC`);
  });
  const raised = (code: string) => `DO $$BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '${code}'; END$$`;
  const statements: [string, string][] = [
    ['08001', 'SELECT * FROM far'],
    ['57P01', raised('57P01')],
    ['57P05', raised('57P05')],
    ['25P03', raised('25P03')],
    ['25P04', raised('25P04')],
    ['08006', raised('08006')],
    ['CR004', raised('CR004')],
  ];

  it.each(statements)('%s: the run has failed, the session lives, nothing is on hold', async (code, sql) => {
    const job = jobOf(async ({ tx }) => tx.query(sql), { afterLost: 'hold' });
    const failed = await run(job, coordinator());
    expect(failed).toMatchObject({ status: 'failed', final: false, error: { code, severity: 'ERROR' } });
    expect(JSON.stringify(failed.error)).not.toMatch(/npm run|CRONCE_|connection was/);
    expect(await run(job, coordinator())).toMatchObject({ status: 'failed', attempt: 2 });
  });

  it.each(statements)('%s: caught, in tx or in fenced, the work goes on', async (code, sql) => {
    const job = jobOf(async ({ tx, fenced }) => {
      const caught: unknown[] = [];
      for (const on of [async (use: Body) => use(tx), fenced])
        await on(async (inner) => {
          await inner.query('BEGIN');
          await inner.query(sql).catch((error: unknown) => caught.push((error as { code: unknown }).code));
          await inner.query('ROLLBACK');
        });
      await fenced(async (inner) => inner.query(sql)).catch((error: unknown) =>
        caught.push((error as { code: unknown }).code),
      );
      return caught;
    });
    expect(await run(job, coordinator())).toMatchObject({ status: 'succeeded', output: [code, code, code] });
  });
});

type Body = (tx: Transaction) => Promise<unknown>;

describe('what the job sets in its transaction', () => {
  const text = 'Zażółć \\gęślą "jaźń", O’Brien’s ✓';
  beforeAll(async () => {
    await db.query(`CREATE ROLE tenant_${db.name}; GRANT tenant_${db.name} TO ${db.role.name};
      CREATE SCHEMA theirs; CREATE TABLE theirs.note (word text UNIQUE);
      CREATE TABLE theirs.child (word text REFERENCES theirs.note (word) DEFERRABLE INITIALLY DEFERRED);
      CREATE FUNCTION theirs.takes_a_while() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.03); RETURN NULL; END';
      CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON theirs.note DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION theirs.takes_a_while();
      GRANT USAGE ON SCHEMA theirs TO PUBLIC; GRANT ALL ON theirs.note, theirs.child TO PUBLIC`);
  });
  afterAll(async () => db.query(`DROP OWNED BY tenant_${db.name}; DROP ROLE tenant_${db.name}`));

  const settings = [
    ['ROLE', 'tenant'],
    ['statement_timeout', `'1ms'`],
    ['lock_timeout', `'1ms'`],
    ['idle_in_transaction_session_timeout', '0'],
    ['transaction_read_only', 'on'],
    ['default_transaction_read_only', 'on'],
    ['DateStyle', `'German, DMY'`],
    ['IntervalStyle', `'sql_standard'`],
    ['TimeZone', `'Asia/Kathmandu'`],
    ['search_path', 'nowhere'],
    ['search_path', 'theirs, pg_catalog'],
    ['row_security', 'off'],
    ['synchronous_commit', 'off'],
    ['standard_conforming_strings', 'off'],
    ['transform_null_equals', 'on'],
    ['array_nulls', 'off'],
    ['quote_all_identifiers', 'on'],
    ['bytea_output', `'escape'`],
    ['client_min_messages', 'debug5'],
    ['enable_seqscan', 'off'],
  ] as const;

  /** One that the server no longer has, or will not change, is none that a job can set. */
  async function apply(tx: Transaction, name: string, value: string): Promise<boolean> {
    const set = name === 'ROLE' ? `SET LOCAL ROLE ${value}_${db.name}` : `SET LOCAL ${name} = ${value}`;
    await tx.query('SAVEPOINT before');
    return tx.query(set).then(
      () => true,
      async () => {
        await tx.query('ROLLBACK TO before');
        return false;
      },
    );
  }

  /** Its foreign key is looked at with the COMMIT, by locking a row: in a read-only transaction nobody could. */
  async function withChild(tx: Transaction, setting: string, mine: string): Promise<void> {
    if (setting === 'transaction_read_only') return;
    await tx.query('INSERT INTO theirs.child VALUES ($1)', [mine]);
  }

  const word = (name: string, value: string, where: string) => `${name} ${value} ${where} ${++made}`;

  /**
   * A millisecond may be over before a busy machine has come to the statement of ours that takes the job's limit away.
   * What that ends has failed and says so, and is made once more.
   */
  async function runDespiteLimits(work: (context: WorkContext) => Promise<unknown>): Promise<RunRecord> {
    let done = await run(jobOf(work));
    const isCutOff = () => done.status === 'failed' && /57014|25P02|55P03/.test(JSON.stringify(done.error));
    for (let again = 1; again < 9 && isCutOff(); again++) done = await run(jobOf(work));
    return done;
  }

  it.concurrent.each(settings)('%s = %s: the run succeeds, at its end', async (name, value) => {
    const mine = word(name, value, 'end');
    const done = await runDespiteLimits(async ({ tx }) => {
      await tx.query('INSERT INTO theirs.note VALUES ($1)', [mine]);
      await withChild(tx, name, mine);
      await apply(tx, name, value);
      return { text };
    });
    expect([done.status, done.error]).toEqual(['succeeded', null]);
    expect(done).toMatchObject({ output: { text }, scheduledFor: '2026-11-29T12:00:00.000Z' });
    expect(await db.query('SELECT word FROM theirs.note WHERE word = $1', [mine])).toHaveLength(1);
  });

  it.concurrent.each(settings)('%s = %s: the run succeeds, over some heartbeats', async (name, value) => {
    const mine = word(name, value, 'middle');
    const done = await runDespiteLimits(async ({ tx, check }) => {
      await tx.query('INSERT INTO theirs.note VALUES ($1)', [mine]);
      const isSet = await apply(tx, name, value);
      await delay(3_500);
      check();
      // The job's own settings are its own still, but for those that would end its lock.
      const own =
        name === 'ROLE' ? 'SELECT current_user AS value' : `SELECT current_setting('${name}') AS value`;
      const { rows } = await tx.query<{ value: string }>(own).catch(() => ({ rows: [] }));
      return { text, isSet, kept: rows[0]?.value };
    });
    expect([done.status, done.error]).toEqual(['succeeded', null]);
    expect(done.output).toMatchObject({ text });
    if (name === 'ROLE') expect(done.output).toMatchObject({ kept: `tenant_${db.name}` });
    if (name === 'TimeZone') expect(done.output).toMatchObject({ kept: 'Asia/Kathmandu' });
  });

  it.concurrent.each(settings)('%s = %s: fenced commits', async (name, value) => {
    const mine = word(name, value, 'fenced');
    const done = await runDespiteLimits(async ({ fenced }) => {
      await fenced(async (tx) => {
        await tx.query('INSERT INTO theirs.note VALUES ($1)', [mine]);
        await withChild(tx, name, mine);
        await apply(tx, name, value);
      });
      return { text };
    });
    expect([done.status, done.error]).toEqual(['succeeded', null]);
    expect(await db.query('SELECT word FROM theirs.note WHERE word = $1', [mine])).toHaveLength(1);
  });

  it.concurrent.each([
    ['throws', async () => Promise.reject(new Error(text)), 'failed'],
    ['meets an SQL error', async ({ tx }: WorkContext) => tx.query('SELECT 1/0'), 'failed'],
  ] as const)('work that %s as another role, read-only, has its record', async (_how, end, status) => {
    const job = jobOf(async (context) => {
      await apply(context.tx, 'ROLE', 'tenant');
      await apply(context.tx, 'transaction_read_only', 'on');
      return end(context);
    });
    const done = await run(job);
    expect(done).toMatchObject({ status, final: false });
    if (done.error?.name === 'Error') expect(done.error.message).toBe(text);
  });

  it.each(['tenant', 'nobody else'])('a cancel is heard by work as %s', async (role) => {
    const job = jobOf(async ({ tx, signal }) => {
      if (role === 'tenant') await apply(tx, 'ROLE', role);
      await delay(30_000, undefined, { signal });
    });
    const running = run(job);
    const ids = async () =>
      db.query(`SELECT id FROM cronce.run WHERE job = $1 AND status = 'running'`, [job.name]);
    await expect.poll(ids, { timeout: 5_000 }).toHaveLength(1);
    const session = await Session.open(targetOf(db.url));
    const [row] = await ids();
    const cancelled = await cancelRun(session, String(row?.['id']), { by: 'ann', graceMs: 20_000 });
    await session.close();
    expect(cancelled).toMatchObject({ status: 'cancelled', cancelRequestedBy: 'ann' });
    expect(await running).toMatchObject({ status: 'cancelled', id: row?.['id'] });
  });
});

describe('the record of an SQL error of the job’s own', () => {
  it.each(['42883', '42P01', '25006', '53300', '57P01', '08006', '42501', '23503'])(
    'is the job’s where it comes with the commit: a deferred trigger that raises %s',
    async (code) => {
      const name = `late_${code.toLowerCase()}`;
      await db.query(`CREATE TABLE ${name} (n int); GRANT ALL ON ${name} TO PUBLIC;
        CREATE FUNCTION ${name}() RETURNS trigger LANGUAGE plpgsql AS
          $$BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '${code}', DETAIL = 'so it is'; END$$;
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON ${name} DEFERRABLE INITIALLY DEFERRED
          FOR EACH ROW EXECUTE FUNCTION ${name}()`);
      for (const on of [
        async ({ tx }: WorkContext) => tx.query(`INSERT INTO ${name} VALUES (1)`),
        async ({ fenced }: WorkContext) => fenced(async (tx) => tx.query(`INSERT INTO ${name} VALUES (1)`)),
      ]) {
        const { status, error } = await run(jobOf(on));
        expect([status, error]).toMatchObject(['failed', { code, message: 'mine', detail: 'so it is' }]);
      }
    },
  );

  beforeAll(async () => {
    await db.query(`CREATE TABLE person (mail text CONSTRAINT one_each UNIQUE, age int CONSTRAINT adult CHECK (age > 17));
      GRANT ALL ON person TO PUBLIC; INSERT INTO person VALUES ('a', 18)`);
  });
  it.each<[string, string, object]>([
    ['a function that isn’t there', 'SELECT nowhere(1)', { code: '42883', name: 'error', position: '8' }],
    ['a table that isn’t there', 'SELECT FROM nowhere', { code: '42P01' }],
    ['a function of ours that isn’t there', 'SELECT cronce.nowhere(1)', { code: '42883' }],
    ['a schema without rights', 'SELECT FROM pg_authid', { code: '42501' }],
    [
      'a second one',
      `INSERT INTO person VALUES ('a', 20)`,
      {
        code: '23505',
        constraint: 'one_each',
        table: 'person',
        schema: 'public',
        detail: expect.stringContaining('already exists') as string,
      },
    ],
    ['one too young', `INSERT INTO person VALUES ('b', 3)`, { code: '23514', constraint: 'adult' }],
    [
      'a lock not had',
      `DO $$BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '55P03', HINT = 'mine'; END$$`,
      { hint: 'mine' },
    ],
  ])('has all that the server said, and no cure of ours: %s', async (_what, sql, told) => {
    for (const on of [
      async ({ tx }: WorkContext) => tx.query(sql),
      async ({ fenced }: WorkContext) => fenced(async (tx) => tx.query(sql)),
    ]) {
      const { status, error } = await run(jobOf(on));
      expect([status, error]).toMatchObject(['failed', { severity: 'ERROR', ...told }]);
      expect(JSON.stringify([error?.name, error?.message])).not.toMatch(/npm run|SchemaMismatch|grant/i);
    }
  });
});

describe.each<[DriverName, Parsers, { binary?: boolean | undefined }]>([
  ['pg', pg.types, pg.defaults],
  ['neon', neon.types, neon.defaults],
])('whatever the process has made of the parsers of %s', (driver, parsers, defaults) => {
  it.each([false, true])('the sweep does all that it does (binary results: %s)', async (binary) => {
    const other = await freshDatabase();
    onTestFinished(async () => other.drop());
    const behind = await startRelay({ allow: [new URL(other.url).host] });
    onTestFinished(async () => behind.stop());
    const target = targetOf(other.url, driver, driver === 'neon' ? behind.wsProxy : undefined);
    let now = new Date('2026-11-29T12:00:10Z');
    const hourly = jobOf(async () => 1, { schedule: 'cron(0 * * * ? *)', catchUp: 'all', lockDelayMs: 0 });
    const coordinator = coordinatorOn(other.url, { target, clock: () => now });
    const asked: RunRequest[] = [];
    const sweep = async () => {
      const job = sweepJob({
        registry: defineJobs([hourly]),
        deliver: async (request) => void asked.push(request),
        openSession: async () => Session.open(target),
        sinks: [],
        logger: silent,
        timeoutMs: 1_000,
        retentionMs: 86_400_000,
        gapMs: 0,
        clock: () => now,
      });
      return coordinate(deliveryFor(job, now), 60_000, coordinator);
    };
    makeOdd(parsers);
    if (binary) {
      defaults.binary = true;
      onTestFinished(() => void (defaults.binary = false));
    }
    expect(await sweep()).toMatchObject({ status: 'succeeded', error: null });
    await coordinate(deliveryFor(hourly, '2026-11-29T13:00:00Z'), 60_000, coordinator);
    await coordinate(deliveryFor(hourly, '2026-11-29T14:00:00Z'), 60_000, coordinator);
    await other.query(
      `UPDATE cronce.run SET status = 'running', finished_at = NULL, final = NULL, published_at = NULL, backend_pid = 1
       WHERE slot = '2026-11-29T14:00:00Z'`,
    );
    now = new Date('2026-11-29T16:30:10Z');
    const done = { settled: 1, missed: 2, owed: 2, caughtUp: 1, redelivered: 0, pruned: 0 };
    expect(await sweep()).toMatchObject({ status: 'succeeded', output: done });
    now = new Date('2026-12-09T16:30:10Z');
    expect(await sweep()).toMatchObject({
      status: 'succeeded',
      output: { settled: 0, pruned: expect.any(Number) as number },
    });
    expect(asked[0]?.cronce.slot).toBe('2026-11-29T15:00:00Z');
  });

  it('a run is cancelled', async () => {
    makeOdd(parsers);
    const target = targetOf(db.url, driver, driver === 'neon' ? relay.wsProxy : undefined);
    const job = jobOf(async ({ signal }) => delay(30_000, undefined, { signal }));
    const running = run(job, coordinatorOn(db.url, { target }));
    const ids = async () =>
      db.query(
        `SELECT id::text COLLATE "C" AS id FROM cronce.run WHERE job = '${job.name}' AND status = 'running'`,
      );
    await expect.poll(ids, { timeout: 5_000 }).toHaveLength(1);
    const { id } = (
      JSON.parse(await answer(appOn(db.url), `/runs?job=${job.name}`).then(({ body }) => body)) as {
        runs: { id: string }[];
      }
    ).runs[0] ?? { id: '' };
    const session = await Session.open(target);
    expect(await cancelRun(session, id, { by: 'ann', graceMs: 10_000 })).toMatchObject({
      status: 'cancelled',
    });
    await session.close();
    expect((await running).status).toBe('cancelled');
  });
});
