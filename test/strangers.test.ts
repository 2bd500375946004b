/** The database's defaults and the process's parsers are none of ours. The rest of the suite has the defaults of bed.ts. */
import * as neon from '@neondatabase/serverless';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import { startRelay, type Relay } from '../infra/local/relay.ts';
import { coordinate } from '../src/coordinate.ts';
import { createApp } from '../src/http/app.ts';
import type { DriverName } from '../src/postgres/driver.ts';
import { Session } from '../src/postgres/session.ts';
import { coordinatorOn, deliveryFor, targetOf } from './support/coordinator.ts';
import { freshDatabase, type TestDatabase } from './support/database.ts';
import { jobs, makeEveryOutcome, report, silent, tidy } from './support/runs.ts';

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
