import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cancelRun } from '../../src/path/cancel.ts';
import { coordinate } from '../../src/coordinate.ts';
import type { Stop } from '../../src/path/ending.ts';
import { defineJob, JobError, type Job, type JobOptions, type WorkContext } from '../../src/job.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';
import { coordinatorOn, deliveryFor, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';

const noon = '2026-11-29T12:00:00Z';
const one = '2026-11-29T13:00:00Z';
const two = '2026-11-29T14:00:00Z';

let db: TestDatabase;
let jobs = 0;
beforeAll(async () => void (db = await freshDatabase({ examples: true })));
afterAll(async () => db.drop());

function job(work: (context: WorkContext) => Promise<unknown>, options: Partial<JobOptions> = {}) {
  return defineJob({ name: `job-${++jobs}`, leaseMs: 2_000, work, ...options });
}

async function run(task: Job, slot: string, params: RunRecord['params'] = null): Promise<RunRecord> {
  return coordinate(deliveryFor(task, slot, { params }), 60_000, coordinatorOn(db.url));
}

/** Once so many runs of a job stand as running. */
async function whenRunning(task: Job, count: number): Promise<void> {
  const ids = () => db.query(`SELECT id FROM cronce.run WHERE job = $1 AND status = 'running'`, [task.name]);
  await expect.poll(ids, { interval: 10 }).toHaveLength(count);
}

/** The id of the run that now stands as running for a job. */
async function runningId(task: Job): Promise<string> {
  const ids = () => db.query(`SELECT id FROM cronce.run WHERE job = $1 AND status = 'running'`, [task.name]);
  await expect.poll(ids).toHaveLength(1);
  return String((await ids())[0]?.['id']);
}

async function withSession<T>(body: (session: Session) => Promise<T>): Promise<T> {
  const session = await Session.open(targetOf(db.url));
  try {
    return await body(session);
  } finally {
    await session.close();
  }
}

/** Works until it is told to stop, and then a little more if it does not listen. */
function working(most: number, options: Partial<JobOptions> = {}, listens = true) {
  const stops: Stop[] = [];
  const task = job(async ({ signal, tx }) => {
    signal.addEventListener('abort', () => stops.push(signal.reason as Stop));
    await tx.query(`INSERT INTO app.page_view VALUES (now(), 'cancelled', $1)`, [task.name]);
    await delay(most, undefined, listens ? { signal } : {});
    return 'done';
  }, options);
  return { task, stops };
}

describe('cancel', () => {
  it('tells the work, which stops by itself; its writes roll back', async () => {
    const { task, stops } = working(20_000);
    const running = run(task, noon);
    const id = await runningId(task);
    const answered = await withSession((session) => cancelRun(session, id, { by: 'ann', graceMs: 10_000 }));
    expect(answered).toMatchObject({ id, status: 'cancelled', cancelRequestedBy: 'ann', final: true });
    expect(await running).toMatchObject({ id, status: 'cancelled' });
    expect(stops.map(({ reason }) => reason)).toEqual(['cancelled']);
    expect(await db.query(`SELECT 1 FROM app.page_view WHERE visitor = $1`, [task.name])).toEqual([]);
  });

  it('ends the holder’s session where the grace is over, and the lock is free at once', async () => {
    const { task, stops } = working(3_000, {}, false);
    const running = run(task, noon);
    const id = await runningId(task);
    const answered = await withSession((session) => cancelRun(session, id, { by: 'ann', graceMs: 0 }));
    expect(answered).toMatchObject({ id, status: 'cancelled' });
    const quick = job(async () => 'in', { lock: task.name });
    await expect.poll(() => run(quick, noon), { timeout: 1_000 }).toMatchObject({ status: 'succeeded' });
    expect(await running).toMatchObject({ id, status: 'cancelled' });
    expect(stops.map(({ reason }) => reason)).toEqual(['lock_lost']);
  });

  it('leaves a run that is over as it is, and knows of none that never was', async () => {
    const task = job(async () => 'done');
    const { id } = await run(task, noon);
    const answers = await withSession(async (session) => [
      await cancelRun(session, id, { by: 'ann', graceMs: 0 }),
      await cancelRun(session, '01234567-89ab-7cde-8000-000000000000', { by: 'ann', graceMs: 0 }),
    ]);
    expect(answers).toMatchObject([{ status: 'succeeded', cancelRequestedBy: null }, undefined]);
  });

  it('turns a later delivery of the slot away, but not another slot', async () => {
    const { task } = working(20_000);
    const running = run(task, noon);
    const id = await runningId(task);
    await withSession((session) => cancelRun(session, id, { by: 'ann', graceMs: 5_000 }));
    await running;
    expect(await run(task, noon)).toMatchObject({
      status: 'skipped',
      skipReason: 'duplicate',
      blockedBy: id,
    });
  });
});

describe('overlap', () => {
  it('wait: waits for the lock, in turn, and then skips as held', async () => {
    const task = job(async () => delay(300), { overlap: 'wait', waitMs: 5_000 });
    const runs = await Promise.all([noon, one, two].map((slot) => run(task, slot)));
    expect(runs.map(({ status }) => status)).toEqual(['succeeded', 'succeeded', 'succeeded']);
    const slow = job(async () => delay(1_200), { overlap: 'wait', waitMs: 200 });
    const first = run(slow, noon);
    const id = await runningId(slow);
    expect(await run(slow, one)).toMatchObject({ status: 'skipped', skipReason: 'held', blockedBy: id });
    await first;
  });

  it('wait: a duplicate that has waited is still a duplicate, and does not work', async () => {
    let worked = 0;
    const task = job(
      async () => {
        worked += 1;
        await delay(300);
      },
      { overlap: 'wait', waitMs: 5_000 },
    );
    const runs = await Promise.all([run(task, noon), run(task, noon)]);
    expect(runs.map(({ skipReason }) => skipReason).sort()).toEqual(['duplicate', null]);
    expect(worked).toBe(1);
  });

  it('wait: may wait for longer than a lease and is still sure of its lock', async () => {
    const task = job(async () => delay(3_000), { overlap: 'wait', waitMs: 10_000 });
    const runs = await Promise.all([noon, one].map((slot) => run(task, slot)));
    expect(runs.map(({ status }) => status)).toEqual(['succeeded', 'succeeded']);
  });

  it('replace: ends the run of an earlier slot, then runs', async () => {
    const { task } = working(800, { overlap: 'replace', waitMs: 8_000 });
    const long = { ...task, work: working(20_000).task.work };
    const first = run(long, noon);
    const id = await runningId(task);
    expect(await run(task, one)).toMatchObject({ status: 'succeeded' });
    expect(await first).toMatchObject({ id, status: 'cancelled', cancelRequestedBy: `the run of ${one}` });
  });

  it('replace: a duplicate, or a late earlier slot, ends nobody', async () => {
    const { task } = working(1_500, { overlap: 'replace', waitMs: 200 });
    await run({ ...task, work: async () => 'early' }, noon);
    const holding = run(task, one);
    await runningId(task);
    expect(await run(task, one)).toMatchObject({ status: 'skipped', skipReason: 'held' });
    expect(await run(task, noon)).toMatchObject({ status: 'skipped', skipReason: 'duplicate' });
    expect(await run(task, '2026-11-29T11:00:00Z')).toMatchObject({ status: 'skipped', skipReason: 'held' });
    expect(await holding).toMatchObject({ status: 'succeeded' });
  });

  it('allow: lets slots overlap, but not the deliveries of one', async () => {
    let inside = 0;
    let most = 0;
    const task = job(
      async () => {
        most = Math.max(most, ++inside);
        await delay(1_500);
        inside -= 1;
      },
      { overlap: 'allow' },
    );
    const runs = await Promise.all([noon, noon, one, one, two].map((slot) => run(task, slot)));
    expect(
      runs
        .filter(({ status }) => status === 'succeeded')
        .map(({ slot }) => slot)
        .sort(),
    ).toEqual([noon, one, two]);
    expect(runs.filter(({ skipReason }) => skipReason === 'held')).toHaveLength(2);
    expect(most).toBe(3);
  });
});

describe('lock', () => {
  it('is shared by jobs that name the same', async () => {
    const lock = `shared-${++jobs}`;
    const holder = job(async () => delay(1_500), { lock });
    const other = job(async () => 1, { lock });
    const holding = run(holder, noon);
    const id = await runningId(holder);
    expect(await run(other, noon)).toMatchObject({ status: 'skipped', skipReason: 'held', blockedBy: id });
    expect(await holding).toMatchObject({ fence: '1' });
    expect(await run(other, one)).toMatchObject({ status: 'succeeded', fence: '2' });
  });

  it('may depend on the params: one a tenant', async () => {
    const task = job(async () => delay(1_500), {
      lock: (params) => `tenant-${JSON.stringify(params)}-${jobs}`,
    });
    const runs = await Promise.all([
      run(task, noon, 1),
      run(task, one, 2),
      whenRunning(task, 2).then(() => run(task, two, 1)),
    ]);
    expect(runs.map(({ status }) => status)).toEqual(['succeeded', 'succeeded', 'skipped']);
  });

  it('may have several places; the deliveries of one slot still exclude each other', async () => {
    let inside = 0;
    let most = 0;
    const task = job(
      async () => {
        most = Math.max(most, ++inside);
        await delay(1_500);
        inside -= 1;
      },
      { places: 2 },
    );
    const runs = await Promise.all([run(task, noon), run(task, noon), run(task, one)]);
    expect(
      runs
        .filter(({ status }) => status === 'succeeded')
        .map(({ slot }) => slot)
        .sort(),
    ).toEqual([noon, one]);
    const full = [
      run(task, two),
      run(task, '2026-11-29T15:00:00Z'),
      whenRunning(task, 2).then(() => run(task, '2026-11-29T16:00:00Z')),
    ];
    expect((await Promise.all(full)).map(({ status }) => status)).toEqual([
      'succeeded',
      'succeeded',
      'skipped',
    ]);
    expect(most).toBe(2);
  });
});

it('a slot that runs under another lock is guarded all the same: the same job, deployed with another', async () => {
  let goOn: () => void = () => undefined;
  const goneOn = new Promise<void>((resolve) => (goOn = resolve));
  const before = job(() => goneOn);
  const after = { ...before, lock: 'moved', work: async () => 'second' };
  const old = run(before, noon);
  const id = await runningId(before);
  expect(await run(after, noon)).toMatchObject({ status: 'skipped', skipReason: 'held', blockedBy: id });
  goOn();
  expect(await old).toMatchObject({ status: 'succeeded' });
  expect(await run(after, noon)).toMatchObject({ status: 'skipped', skipReason: 'duplicate' });
});

it('a slot that succeeds meanwhile, by whatever way: the unique index has the last word', async () => {
  const task = job(async ({ tx, runId }) => {
    await tx.query(`INSERT INTO app.page_view VALUES (now(), 'twice', 'late')`);
    await db.query(
      `INSERT INTO cronce.run (id, job, slot, scheduled_for, trigger, status, lock_name, fence, attempt, final,
         received_at, started_at, finished_at)
       SELECT gen_random_uuid(), job, slot, scheduled_for, 'rule', 'succeeded', 'elsewhere', 1, 1, true, now(), now(), now()
       FROM cronce.run WHERE id = $1`,
      [runId],
    );
  });
  expect(await run(task, noon)).toMatchObject({ status: 'lost', error: { code: '23505' } });
  expect(await db.query(`SELECT 1 FROM app.page_view WHERE path = 'twice'`)).toEqual([]);
  expect(await run(task, noon)).toMatchObject({ status: 'skipped', skipReason: 'duplicate' });
});

it.each<[Partial<JobOptions>, RegExp]>([
  [{ name: 'No Spaces' }, /name is "No Spaces"; allowed: lower-case/],
  [{ leaseMs: 1_999 }, /leaseMs is 1999; allowed: a whole number from 2000 to 300000/],
  [{ retries: 3 as 2 }, /retries is 3/],
  [{ overlap: 'queue' as 'skip' }, /overlap is "queue"; allowed: skip, wait, replace, allow/],
  [{ overlap: 'allow', lock: 'x' }, /without lock and places/],
  [{ schedule: 'cron(* * * * *)' }, /schedule: /],
  [
    { schedule: { at: 'rate(1 hour)', timeZone: 'Mars/Olympus' } },
    /schedule: Invalid time zone "Mars\/Olympus"/,
  ],
  [{ places: 2, lock: 5n }, /places is 2; allowed: only 1/],
  [{ lock: 2n ** 64n }, /does not fit/],
  [{ timeout: 5 } as Partial<JobOptions>, /no option "timeout"; did you mean timeoutMs\?/],
])('a job that can not be is refused when it is defined: %o', (options, message) => {
  const define = () => defineJob({ name: 'a', work: async () => 1, ...options });
  expect(define).toThrow(JobError);
  expect(define).toThrow(message);
});
