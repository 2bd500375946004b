/** The rights that README grants are enough: its own statements are run here, and nothing more. */
import { randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import pg from 'pg';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { urlFor, type Role } from '../../infra/local/role.ts';
import { migrate } from '../../infra/migrate.ts';
import { cancelRun } from '../../src/path/cancel.ts';
import { coordinate } from '../../src/coordinate.ts';
import { createApp } from '../../src/http/app.ts';
import { defineJob, defineJobs } from '../../src/job.ts';
import { Session } from '../../src/postgres/session.ts';
import { sweepJob } from '../../src/sweep/sweep.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { silent } from '../support/runs.ts';

const token = 'run-token-0123456789';
const plain = defineJob({ name: 'plain', work: async ({ tx }) => (await tx.query('SELECT 1 AS x')).rows });
const deaf = defineJob({ name: 'deaf', work: async ({ tx }) => tx.query('SELECT pg_sleep(60)') });
const fencing = defineJob({
  name: 'fencing',
  work: async ({ fenced }) => fenced(async (own) => own.query('SELECT 1')),
});

let db: TestDatabase;
let owner: Role;
let runner: Role;
let url: string;
let ownerUrl: string;

beforeAll(async () => {
  db = await freshDatabase({ migrated: false });
  // Roles are the server's, and other test files make theirs.
  [owner, runner] = ['owner', 'runner'].map((name) => ({
    name: `cronce_${name}_${randomUUID().slice(0, 8)}`,
    password: randomUUID(),
  })) as [Role, Role];
  [ownerUrl, url] = [owner, runner].map((role) => urlFor(db.superuserUrl, role, db.name)) as [string, string];
  const [rights = '', grants = ''] = await statements();
  await db.query(rights);
  await migrate(ownerUrl);
  // What README grants shall be what counts, and not what everyone may.
  await asOwner(`REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA cronce FROM PUBLIC; ${grants}`);
});
afterAll(async () => {
  for (const { name } of [runner, owner]) await db.query(`DROP OWNED BY ${name} CASCADE; DROP ROLE ${name}`);
  await db.drop();
});

/** README's blocks of SQL under this heading, for the roles and the database of this test. */
async function statements(): Promise<string[]> {
  const readme = await readFile(new URL('../../README.md', import.meta.url), 'utf8');
  const [, section = ''] = /### What rights the role needs\n([^]*?)\n#/.exec(readme) ?? [];
  return [...section.matchAll(/```sql\n([^]*?)```/g)].map(([, sql = '']) =>
    sql
      .replaceAll('cronce_owner', owner.name)
      .replaceAll('cronce_runner', runner.name)
      .replaceAll('DATABASE shop', `DATABASE ${db.name}`)
      .replace('for npm run migrate', owner.password)
      .replace('for the functions', runner.password),
  );
}

async function asOwner(sql: string): Promise<void> {
  const client = new pg.Client({ connectionString: ownerUrl });
  await client.connect();
  await client.query(sql).finally(() => client.end());
}

const open = async () => Session.open(targetOf(url));
const deliver = async (job: typeof plain, slot: string) =>
  coordinate(deliveryFor(job, slot), 60_000, coordinatorOn(url));

async function ask(path: string, method = 'GET') {
  const app = createApp({
    registry: defineJobs([plain, deaf]),
    readTokens: [],
    runTokens: [token],
    openSession: open,
    startRun: async () => undefined,
    now: () => new Date(),
    logger: silent,
  });
  const response = await app.request(path, { method, headers: { authorization: `Bearer ${token}` } });
  return { status: response.status, json: (await response.json()) as Record<string, unknown> };
}

it('a delivery succeeds, and its duplicate is one', async () => {
  expect(await deliver(plain, '2026-11-29T12:00:00Z')).toMatchObject({ status: 'succeeded' });
  expect(await deliver(plain, '2026-11-29T12:00:00Z')).toMatchObject({ skipReason: 'duplicate' });
});

it('a fenced transaction commits', async () => {
  expect(await deliver(fencing, '2026-11-29T12:00:00Z')).toMatchObject({ status: 'succeeded' });
});

it('a job is paused and resumed over HTTP, and its runs can be read', async () => {
  expect(await ask('/jobs/plain/pause', 'POST')).toMatchObject({ status: 200, json: { job: 'plain' } });
  expect(await deliver(plain, '2026-11-29T13:00:00Z')).toMatchObject({ skipReason: 'paused' });
  expect(await ask('/jobs/plain/resume', 'POST')).toMatchObject({ status: 200, json: { paused: null } });
  const { status, json } = await ask('/runs?job=plain');
  expect(status).toBe(200);
  expect((json['runs'] as { status: string }[]).map((run) => run.status)).toContain('succeeded');
  expect(await ask('/jobs')).toMatchObject({ status: 200 });
  expect(await ask('/healthz')).toMatchObject({ status: 200 });
});

it('a cancel ends the session of work that does not listen', async () => {
  const running = deliver(deaf, '2026-11-29T12:00:00Z');
  const ids = async () => db.query(`SELECT id FROM cronce.run WHERE job = 'deaf' AND status = 'running'`);
  await expect.poll(ids).toHaveLength(1);
  const [run] = await ids();
  const session = await open();
  const cancelled = await cancelRun(session, String(run?.['id']), { by: 'ann', graceMs: 0 });
  await session.close();
  expect(cancelled).toMatchObject({ status: 'cancelled', cancelRequestedBy: 'ann' });
  expect(await running).toMatchObject({ status: 'cancelled' });
  await db.assertNoLeaks();
});

it('a sweep passes', async () => {
  const sweep = sweepJob({
    registry: defineJobs([plain]),
    deliver: async () => undefined,
    openSession: open,
    sinks: [],
    timeoutMs: 1_000,
    retentionMs: 30 * 86_400_000,
    gapMs: 0,
    logger: silent,
  });
  expect(await deliver(sweep, '2026-11-29T12:00:00Z')).toMatchObject({ status: 'succeeded', error: null });
});

it('the functions can’t change what was migrated, nor the schema', async () => {
  const session = await open();
  for (const sql of [
    'DELETE FROM cronce.migration',
    'CREATE TABLE cronce.mine ()',
    'DROP TABLE cronce.run',
    'CREATE SCHEMA mine',
  ])
    await expect(session.query(sql), sql).rejects.toMatchObject({ code: '42501' });
  await session.close();
});

it('later migrations need no right to make schemas, and what they make is the functions’ too', async () => {
  await db.query(`REVOKE CREATE ON DATABASE ${db.name} FROM ${owner.name}`);
  expect(await migrate(ownerUrl)).toEqual([]);
  await asOwner(
    'CREATE TABLE cronce.later (n int); CREATE FUNCTION cronce.two() RETURNS int LANGUAGE sql RETURN 2',
  );
  const session = await open();
  expect(await session.send('INSERT INTO cronce.later VALUES (cronce.two())')).toHaveLength(1);
  await session.close();
});
