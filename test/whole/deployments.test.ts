/** Several services, each with its own registry, functions and sweep, in one database. */
import { readFile } from 'node:fs/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { migrate } from '../../infra/migrate.ts';
import { coordinate, type Coordinator } from '../../src/coordinate.ts';
import { createApp } from '../../src/http/app.ts';
import { defineJob, defineJobs, type Job, type JobOptions, type WorkContext } from '../../src/job.ts';
import { lockKey, lockOf } from '../../src/lock-name.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';
import type { Sink } from '../../src/sinks/sink.ts';
import { sweepJob, type Swept } from '../../src/sweep/sweep.ts';
import { deliveryOf, type Delivery, type RunRequest } from '../../src/path/trigger.ts';
import { coordinatorOn, deliveryFor, keepingLogger, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';

const minute = 60_000;
const hour = 60 * minute;
const day = 24 * hour;
const noon = '2026-11-29T12:00:00Z';
const token = 'run-token-0123456789';

let db: TestDatabase;
let sweeps = 0;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());
beforeEach(async () => {
  await db.query('TRUNCATE cronce.run, cronce.job, cronce.schedule, cronce.pause, cronce.lock');
});

/** One of them, in virtual time. */
class Service {
  readonly asked: RunRequest[] = [];
  readonly logger = keepingLogger();
  readonly sent: RunRecord[] = [];
  readonly #sink: Sink = {
    name: 'bus',
    send: async (records) => {
      this.sent.push(...records);
      return new Set(records.map(({ id }) => id));
    },
  };
  readonly deployment: string;
  readonly jobs: readonly Job[];
  now = new Date('2026-11-29T12:00:10Z');
  /** Whether there is a bus besides the log. */
  hasBus = false;

  constructor(deployment: string, ...jobs: Job[]) {
    this.deployment = deployment;
    this.jobs = [...defineJobs(jobs).values()];
  }

  pass(ms: number): this {
    this.now = new Date(this.now.getTime() + ms);
    return this;
  }

  get told(): string[] {
    return this.logger.lines.map(({ message }) => message);
  }

  coordinator(): Coordinator {
    const { deployment, logger } = this;
    const sinks = this.hasBus ? [this.#sink] : [];
    return coordinatorOn(db.url, { deployment, logger, sinks, clock: () => this.now });
  }

  async deliver(name: string, slot: string | Date = noon, given: Partial<Delivery> = {}): Promise<RunRecord> {
    const job = this.jobs.find((one) => one.name === name) as Job;
    return coordinate(deliveryFor(job, slot, given), minute, this.coordinator());
  }

  /** As each job's own function would. */
  async runAsked(): Promise<RunRecord[]> {
    const registry = defineJobs(this.jobs);
    const runs: RunRecord[] = [];
    for (const request of this.asked.splice(0)) {
      const delivery = deliveryOf(request, { registry, ownJob: null, deliveryId: null, now: this.now });
      runs.push(await coordinate(delivery, minute, this.coordinator()));
    }
    return runs;
  }

  async sweep(): Promise<Swept> {
    const { deployment, logger } = this;
    const job = sweepJob({
      registry: defineJobs(this.jobs),
      deployment,
      deliver: async (request) => void this.asked.push(request),
      openSession: async () => Session.open(targetOf(db.url)),
      sinks: this.coordinator().sinks,
      timeoutMs: 1_000,
      retentionMs: 30 * day,
      gapMs: 0,
      clock: () => this.now,
      logger,
    });
    const byHand = { slot: `manual:${++sweeps}`, byHand: true };
    const run = await coordinate(deliveryFor(job, this.now, byHand), minute, this.coordinator());
    if (run.status !== 'succeeded') throw new Error(`sweep ${run.status}: ${JSON.stringify(run.error)}`);
    return run.output as unknown as Swept;
  }

  async ask(path: string, method = 'GET') {
    const app = createApp({
      registry: defineJobs(this.jobs),
      deployment: this.deployment,
      readTokens: [],
      runTokens: [token],
      openSession: async () => Session.open(targetOf(db.url)),
      startRun: async () => undefined,
      now: () => this.now,
      logger: this.logger,
    });
    const response = await app.request(path, { method, headers: { authorization: `Bearer ${token}` } });
    const text = await response.text();
    return { status: response.status, text, json: text.startsWith('{') ? (JSON.parse(text) as Shown) : {} };
  }

  async slots(status: string, job = 'close'): Promise<string[]> {
    const rows = await db.query(
      'SELECT slot FROM cronce.run WHERE deployment = $1 AND job = $2 AND status = $3 ORDER BY scheduled_for',
      [this.deployment, job, status],
    );
    return rows.map(({ slot }) => String(slot).slice(11, 16));
  }
}

interface Shown {
  readonly runs?: readonly RunRecord[];
  readonly jobs?: readonly { readonly paused: unknown; readonly latestRun: RunRecord | null }[];
}

function close(options: Partial<JobOptions> = {}): Job {
  return defineJob({ name: 'close', schedule: 'cron(0 * * * ? *)', work: async () => 1, ...options });
}

/** Work that is inside until it is let out. */
function gate() {
  let open: () => void = () => undefined;
  let enter: () => void = () => undefined;
  const opened = new Promise<void>((resolve) => (open = resolve));
  const entered = new Promise<void>((resolve) => (enter = resolve));
  const work = async ({ signal }: WorkContext) => {
    enter();
    await opened;
    signal.throwIfAborted();
    return 1;
  };
  return { work, open, entered };
}

describe('jobs of one name', () => {
  it('run their slots once in each deployment, at the same time', async () => {
    const [one, other] = [gate(), gate()];
    const shop = new Service('shop-prod', close({ work: one.work }));
    const billing = new Service('billing-prod', close({ work: other.work }));
    const unnamed = new Service('default', close());
    const runs = [shop.deliver('close'), billing.deliver('close')];
    await Promise.all([one.entered, other.entered]);
    expect(await unnamed.deliver('close')).toMatchObject({ status: 'succeeded', deployment: 'default' });
    one.open();
    other.open();
    const [ofShop, ofBilling] = await Promise.all(runs);
    expect([ofShop, ofBilling]).toMatchObject([
      { status: 'succeeded', deployment: 'shop-prod', lockName: 'shop-prod/close', fence: '1', attempt: 1 },
      { status: 'succeeded', deployment: 'billing-prod', lockName: 'billing-prod/close', fence: '1' },
    ]);
    expect(await shop.deliver('close')).toMatchObject({
      ...{ skipReason: 'duplicate', blockedBy: ofShop?.id, blockedByDeployment: 'shop-prod' },
    });
    expect(await billing.deliver('close')).toMatchObject({
      ...{ skipReason: 'duplicate', blockedBy: ofBilling?.id, blockedByDeployment: 'billing-prod' },
    });
  });

  it('count their attempts, and are final, each for itself', async () => {
    const fails = async () => Promise.reject(new Error('no'));
    const shop = new Service('shop', close({ retries: 1, work: fails }));
    const billing = new Service('billing', close({ retries: 1, work: fails }));
    for (const service of [shop, billing]) {
      expect(await service.deliver('close')).toMatchObject({ attempt: 1, final: false });
      expect(await service.deliver('close')).toMatchObject({ attempt: 2, final: true });
      expect(await service.deliver('close')).toMatchObject({ skipReason: 'duplicate' });
    }
  });

  it('guess a slot, and say when a run by hand was asked for, each for itself', async () => {
    const shop = new Service('shop', close());
    const billing = new Service('billing', close());
    const guess = { slotGuessed: true, deliveryId: 'request-1' };
    const byHand = { slot: 'manual:close', byHand: true, scheduledForGuessed: true };
    await shop.deliver('close', noon, guess);
    await shop.deliver('close', noon, byHand);
    const later = new Date('2026-11-29T12:01:00Z');
    expect(await shop.deliver('close', later, guess)).toMatchObject({ slot: noon, skipReason: 'duplicate' });
    expect(await billing.deliver('close', later, guess)).toMatchObject({ slot: '2026-11-29T12:01:00Z' });
    expect(await billing.deliver('close', later, byHand)).toMatchObject({
      scheduledFor: later.toISOString(),
    });
  });

  it('are paused each for itself', async () => {
    const shop = new Service('shop', close());
    const billing = new Service('billing', close());
    expect((await shop.ask('/jobs/close/pause', 'POST')).status).toBe(200);
    expect(await shop.deliver('close')).toMatchObject({ skipReason: 'paused' });
    expect(await billing.deliver('close')).toMatchObject({ status: 'succeeded' });
    expect((await billing.ask('/jobs/close/resume', 'POST')).status).toBe(200);
    expect((await shop.ask('/jobs')).json.jobs).toMatchObject([{ paused: { by: 'run token 1' } }]);
    expect((await billing.ask('/jobs')).json.jobs).toMatchObject([{ paused: null }]);
    expect(await shop.deliver('close', '2026-11-29T13:00:00Z')).toMatchObject({ skipReason: 'paused' });
  });
});

describe('a lock that is named on purpose', () => {
  it.each<[string, Partial<JobOptions>]>([
    ['a name', { lock: 'books' }],
    ['an integer', { lock: 42n }],
    ['by params', { lock: () => 'books' }],
    ['of another service’s own', { lock: 'shop/close' }],
  ])('is the database’s: %s', async (_what, options) => {
    const inside = gate();
    const ofShop = options.lock === 'shop/close' ? {} : options;
    const shop = new Service('shop', close({ ...ofShop, work: inside.work }));
    const billing = new Service('billing', close(options));
    const run = shop.deliver('close');
    await inside.entered;
    const held = await billing.deliver('close');
    inside.open();
    expect(held).toMatchObject({
      ...{ skipReason: 'held', deployment: 'billing', blockedByDeployment: 'shop' },
      blockedBy: (await run).id,
    });
    expect(await billing.deliver('close')).toMatchObject({ status: 'succeeded', fence: '2' });
    const page = await billing.ask('/');
    expect(page.text).toContain('held by a run of shop');
    expect(page.text).not.toContain((await run).id);
  });

  it('has its places together', async () => {
    const [one, other] = [gate(), gate()];
    const shop = new Service('shop', close({ lock: 'books', places: 2, work: one.work }));
    const billing = new Service('billing', close({ lock: 'books', places: 2, work: other.work }));
    const runs = [shop.deliver('close'), billing.deliver('close')];
    await Promise.all([one.entered, other.entered]);
    expect(await shop.deliver('close', '2026-11-29T13:00:00Z')).toMatchObject({ skipReason: 'held' });
    one.open();
    other.open();
    expect(await Promise.all(runs)).toMatchObject([{ status: 'succeeded' }, { status: 'succeeded' }]);
  });

  it('is waited for, but another deployment’s run is never replaced', async () => {
    const inside = gate();
    const shop = new Service('shop', close({ lock: 'books', work: inside.work }));
    const options = { lock: 'books', overlap: 'replace', waitMs: 1_000 } as const;
    const billing = new Service(
      'billing',
      close(options),
      close({ ...options, name: 'waits', overlap: 'wait' }),
    );
    const run = shop.deliver('close', '2026-11-29T11:00:00Z');
    await inside.entered;
    expect(await billing.deliver('close')).toMatchObject({ skipReason: 'held', blockedByDeployment: 'shop' });
    const waiting = billing.deliver('waits');
    inside.open();
    expect(await run).toMatchObject({ status: 'succeeded', cancelRequestedBy: null });
    expect(await waiting).toMatchObject({ status: 'succeeded' });
  });
});

describe('a lock that a job names of another job of its registry', () => {
  const audit = (options: Partial<JobOptions>) => close({ name: 'audit', ...options });

  it.each<[string, Job, Job]>([
    ['by its name', close(), audit({ lock: 'close' })],
    ['that is named after itself in so many words', close({ lock: 'close' }), audit({ lock: 'close' })],
    ['by params', close(), audit({ lock: () => 'close' })],
  ])('is that job’s own: %s', async (_how, owner, sharer) => {
    const inside = gate();
    const shop = new Service('shop', { ...owner, work: inside.work }, sharer);
    const billing = new Service('billing', owner, sharer);
    const run = shop.deliver('close');
    await inside.entered;
    expect(await shop.deliver('audit')).toMatchObject({ skipReason: 'held', lockName: 'shop/close' });
    expect(await billing.deliver('audit')).toMatchObject({ status: 'succeeded', lockName: 'billing/close' });
    inside.open();
    expect((await run).status).toBe('succeeded');
  });

  it('but not one that no job’s own lock has', () => {
    const jobs = [
      close({ lock: 'books' }),
      audit({ lock: 'close' }),
      audit({ name: 'third', lock: 'audit' }),
    ];
    const named = [...defineJobs(jobs).values()].map((job) => lockOf(job, noon, null, 'shop').name);
    expect(named).toEqual(['books', 'close', 'audit']);
  });
});

describe('the sweep', () => {
  it('accounts for its own due slots, after ten hours without deliveries', async () => {
    const shop = new Service('shop', close(), close({ name: 'only-shop' }));
    const billing = new Service('billing', close({ schedule: 'cron(30 * * * ? *)' }));
    const both = [shop, billing];
    for (const service of both) expect(await service.sweep()).toMatchObject({ missed: 0 });
    let missed = [0, 0];
    for (let passed = 0; passed < 10; passed++) {
      const swept = [await shop.pass(hour).sweep(), await billing.pass(hour).sweep()];
      missed = missed.map((sum, index) => sum + (swept[index]?.missed ?? 0));
    }
    for (const [index, service] of both.entries())
      missed[index] = (missed[index] ?? 0) + (await service.pass(10 * minute).sweep()).missed;
    expect(missed).toEqual([20, 10]);
    const times = (minutes: string) =>
      Array.from(
        { length: 10 },
        (_, n) => `${(n + 12 + (minutes === '00' ? 1 : 0)) % 24}`.padStart(2, '0') + `:${minutes}`,
      );
    expect(await shop.slots('missed')).toEqual(times('00'));
    expect(await billing.slots('missed')).toEqual(times('30'));
    expect([shop.asked, billing.asked]).toEqual([[], []]);
  });

  it('does not take another’s deliveries for its own, nor their phase', async () => {
    const rate = close({ schedule: 'rate(10 minutes)' });
    const [shop, billing] = [new Service('shop', rate), new Service('billing', rate)];
    for (const service of [shop, billing]) await service.sweep();
    await shop.deliver('close', '2026-11-29T12:13:00Z');
    await billing.deliver('close', '2026-11-29T12:18:00Z');
    await shop.deliver('close', '2026-11-29T12:23:00Z');
    for (const service of [shop, billing]) await service.pass(40 * minute).sweep();
    expect(await shop.slots('missed')).toEqual(['12:33']);
    expect(await billing.slots('missed')).toEqual(['12:08', '12:28']);
  });

  it('catches up by its own registry', async () => {
    const shop = new Service('shop', close({ catchUp: 'one' }));
    const billing = new Service('billing', close({ catchUp: 'skip' }));
    for (const service of [shop, billing]) await service.sweep();
    await billing.deliver('close', '2026-11-29T14:00:00Z');
    for (const service of [shop, billing]) await service.pass(3 * hour).sweep();
    expect(billing.asked).toEqual([]);
    expect(await shop.runAsked()).toMatchObject([{ status: 'succeeded', deployment: 'shop' }]);
  });

  it('leaves another’s dead runs, and its owed slots, to that one', async () => {
    const [shop, billing] = [new Service('shop', close()), new Service('billing', close())];
    await leftBehind(billing);
    expect(await shop.sweep()).toMatchObject({ settled: 0 });
    expect(await billing.sweep()).toMatchObject({ settled: 1 });
    expect(shop.told).not.toContain('close lost');
    expect(billing.told).toContain('close lost');
    for (const service of [shop, billing]) service.pass(11 * minute);
    expect(await shop.sweep()).toMatchObject({ redelivered: 0 });
    expect(await billing.sweep()).toMatchObject({ redelivered: 1 });
  });

  it('prunes its own history', async () => {
    const [shop, billing] = [new Service('shop', close()), new Service('billing', close())];
    for (const service of [shop, billing])
      for (let n = 0; n < 4; n++) await service.deliver('close', new Date(Date.UTC(2026, 10, 29, n)));
    expect(await shop.pass(60 * day).sweep()).toMatchObject({ pruned: 3 });
    expect(await shop.slots('succeeded')).toEqual(['03:00']);
    expect(await billing.slots('succeeded')).toEqual(['00:00', '01:00', '02:00', '03:00']);
  });

  /** A start record as a killed invocation leaves it. */
  async function leftBehind(service: Service): Promise<RunRecord> {
    const run = await service.deliver('close');
    await db.query(
      `UPDATE cronce.run SET status = 'running', finished_at = NULL, final = NULL, published_at = NULL, published_to = '{}',
         backend_pid = 1, lock_delay_ms = 0 WHERE id = $1`,
      [run.id],
    );
    return run;
  }

  it.each([false, true])(
    'tells of its own run, also where another’s claim had settled it (bus: %s)',
    async (hasBus) => {
      const books = close({ lock: 'books' });
      const [shop, billing] = [new Service('shop', books), new Service('billing', books)];
      for (const service of [shop, billing]) service.hasBus = hasBus;
      const dead = await leftBehind(billing);
      const tellsOfDead = (service: Service) =>
        service.told.filter((line) => line === 'close lost').length +
        service.sent.filter(({ status }) => status === 'lost').length;
      billing.sent.length = 0;
      expect(await shop.deliver('close')).toMatchObject({ status: 'succeeded' });
      const standing = 'SELECT status, published_at FROM cronce.run WHERE id = $1';
      expect(await db.query(standing, [dead.id])).toEqual([{ status: 'lost', published_at: null }]);
      await db.query('UPDATE cronce.run SET publish_after = now()');
      await shop.sweep();
      await shop.deliver('close', '2026-11-29T13:00:00Z');
      expect(tellsOfDead(shop)).toBe(0);
      await billing.sweep();
      await billing.sweep();
      expect(tellsOfDead(billing)).toBe(hasBus ? 2 : 1);
      expect(billing.sent.filter(({ deployment }) => deployment !== 'billing')).toEqual([]);
      expect(shop.sent.filter(({ deployment }) => deployment !== 'shop')).toEqual([]);
    },
  );
});

describe('API and page', () => {
  it('show, and change, their own deployment alone', async () => {
    const [shop, billing] = [new Service('shop', close()), new Service('billing', close())];
    const unnamed = new Service('default', close());
    const run = await shop.deliver('close', noon, { params: { secret: 'of the shop' } });
    const other = await billing.deliver('close');
    for (const [service, own] of [
      [shop, [run.id]],
      [billing, [other.id]],
      [unnamed, []],
    ] as const) {
      const ids = async (path: string) => (await service.ask(path)).json.runs?.map(({ id }) => id);
      expect(await ids('/runs')).toEqual(own);
      expect(await ids(`/runs?job=close&slot=${noon}`)).toEqual(own);
      expect(await ids('/jobs/close')).toEqual(own);
      expect((await service.ask('/jobs')).json.jobs).toMatchObject([
        { latestRun: own[0] ? { id: own[0] } : null },
      ]);
      const page = await service.ask('/');
      for (const id of [run.id, other.id]) {
        const isOwn = own.some((one) => one === id);
        expect(page.text.includes(id)).toBe(isOwn);
        expect((await service.ask(`/runs/${id}`)).status).toBe(isOwn ? 200 : 404);
      }
    }
  });

  it('offer no end to another’s run', async () => {
    const inside = gate();
    const shop = new Service('shop', close({ work: inside.work }));
    const billing = new Service('billing', close());
    const run = shop.deliver('close');
    await inside.entered;
    const [row] = await db.query(`SELECT id FROM cronce.run WHERE status = 'running'`);
    expect((await billing.ask(`/runs/${String(row?.['id'])}/cancel`, 'POST')).status).toBe(404);
    inside.open();
    expect(await run).toMatchObject({ status: 'succeeded', cancelRequestedAt: null });
  });
});

describe('a database of before deployments', () => {
  const own = `('x'||encode(substr(sha256(convert_to('cronce:'||$1,'UTF8')),1,8),'hex'))::bit(64)::bigint`;

  async function ofBefore(): Promise<TestDatabase> {
    const old = await freshDatabase({ migrated: false });
    await old.queryAsRole(`CREATE SCHEMA cronce; CREATE TABLE cronce.migration (version integer PRIMARY KEY, name text NOT NULL,
      breaking boolean NOT NULL DEFAULT true, applied_at timestamptz NOT NULL DEFAULT clock_timestamp());
      INSERT INTO cronce.migration VALUES (1, '0001_coordinator'), (2, '0002_accounts')`);
    for (const name of ['0001_coordinator', '0002_accounts'])
      await old.queryAsRole(
        await readFile(new URL(`../../infra/migrations/${name}.sql`, import.meta.url), 'utf8'),
      );
    await old.query(
      `INSERT INTO cronce.job (name, paused_at, paused_by) VALUES ('close', NULL, NULL), ('held-up', now(), 'ann')`,
    );
    return old;
  }

  async function insert(old: TestDatabase, values: Record<string, unknown>): Promise<void> {
    const row = {
      ...{
        job: 'close',
        slot: noon,
        scheduled_for: noon,
        trigger: 'rule',
        lock_name: 'close',
        fence: 7,
        attempt: 1,
      },
      ...{
        received_at: noon,
        started_at: noon,
        lock_key: lockKey('close').toString(),
        lease_ms: 2_000,
        backend_pid: 1,
      },
      ...values,
    };
    const names = Object.keys(row);
    await old.query(
      `INSERT INTO cronce.run (id, ${names.join(', ')}) VALUES (gen_random_uuid(), ${names.map((_, n) => `$${n + 1}`).join(', ')})`,
      Object.values(row),
    );
  }

  const inOld = async (old: TestDatabase, deployment: string, job: Job, slot: string) =>
    coordinate(deliveryFor(job, slot), minute, coordinatorOn(old.url, { deployment }));

  it('goes to the one that migrates: a late duplicate of its last success is one', async () => {
    const old = await ofBefore();
    await insert(old, { status: 'succeeded', finished_at: noon, final: true });
    await migrate(old.url, { deployment: 'shop-prod' });
    expect(await inOld(old, 'shop-prod', close(), noon)).toMatchObject({ skipReason: 'duplicate' });
    expect(await inOld(old, 'billing-prod', close(), noon)).toMatchObject({
      status: 'succeeded',
      fence: '1',
    });
    const heldUp = close({ name: 'held-up' });
    expect(await inOld(old, 'shop-prod', heldUp, noon)).toMatchObject({ skipReason: 'paused' });
    expect(await inOld(old, 'billing-prod', heldUp, noon)).toMatchObject({ status: 'succeeded' });
    await old.drop();
  });

  it.each(['shop-prod', 'default'])(
    'keeps the fences of its jobs’ own locks growing: %s',
    async (deployment) => {
      const old = await ofBefore();
      for (const [name, fence] of [
        ['close', 7],
        ['close#1', 9],
        ['books', 20],
      ] as const)
        await old.query(
          `INSERT INTO cronce.lock (key, name, fence, run_id) VALUES (${own}, $1, $2, gen_random_uuid())`,
          [name, fence],
        );
      await migrate(old.url, { deployment });
      const first = await inOld(old, deployment, close(), noon);
      expect([first.fence, first.status]).toEqual(['8', 'succeeded']);
      const books = close({ name: 'ledger', lock: 'books' });
      expect(await inOld(old, deployment, books, noon)).toMatchObject({ fence: '21' });
      await old.drop();
    },
  );

  it('a start record of before is in the way of the next run of its lock', async () => {
    const old = await ofBefore();
    await insert(old, { status: 'running', slot: '2026-11-29T11:00:00Z' });
    await old.query(
      `INSERT INTO cronce.lock (key, name, fence, run_id) SELECT lock_key, lock_name, fence, id FROM cronce.run`,
    );
    await migrate(old.url, { deployment: 'shop-prod' });
    const run = await inOld(old, 'shop-prod', close(), noon);
    expect(run).toMatchObject({ status: 'succeeded', fence: '8', delayedMs: expect.any(Number) as number });
    expect(run.delayedMs).toBeGreaterThan(1_000);
    expect(await old.query(`SELECT status, lock_name FROM cronce.run WHERE slot LIKE '%T11%'`)).toEqual([
      { status: 'lost', lock_name: 'shop-prod/close' },
    ]);
    await old.drop();
  });
});
