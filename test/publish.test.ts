import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { cancelRun } from '../src/cancel.ts';
import { coordinate, type Coordinator } from '../src/coordinate.ts';
import { defineJob } from '../src/job.ts';
import { Session } from '../src/postgres/session.ts';
import { logOutcome, type Sink } from '../src/publish.ts';
import type { RunRecord, Status } from '../src/run.ts';
import { eventBridgeSink } from '../src/sinks/eventbridge.ts';
import { reply, startAwsEndpoint, type AwsEndpoint, type Call } from './support/aws.ts';
import { coordinatorOn, deliveryFor, keepingLogger, targetOf } from './support/coordinator.ts';
import { freshDatabase, type TestDatabase } from './support/database.ts';
import { after, stage } from './support/rows.ts';

interface PutEvents {
  readonly Entries: readonly { Source: string; DetailType: string; Detail: string; EventBusName: string }[];
}

const slots = Array.from({ length: 30 }, (_, n) => new Date(Date.UTC(2026, 10, 29, 0, n)));
let slot = 0;
let db: TestDatabase;
let bus: AwsEndpoint;
let behave: Parameters<typeof startAwsEndpoint>[0];
const task = defineJob({ name: 'told', work: async () => ({ n: 1 }) });

const accept = (call: Call, failing: (index: number) => boolean = () => false) => {
  const { Entries } = call.body as PutEvents;
  const answers = Entries.map((_, index) =>
    failing(index) ? { ErrorCode: 'InternalFailure' } : { EventId: `e${index}` },
  );
  return { FailedEntryCount: answers.filter(({ ErrorCode }) => ErrorCode).length, Entries: answers };
};

beforeAll(async () => {
  process.env['AWS_ACCESS_KEY_ID'] = 'local';
  process.env['AWS_SECRET_ACCESS_KEY'] = 'local';
  process.env['AWS_REGION'] = 'eu-central-1';
  db = await freshDatabase();
  bus = await startAwsEndpoint((call, response) => behave(call, response));
});
afterAll(async () => {
  await bus.stop();
  await db.drop();
});
beforeEach(async () => {
  bus.calls.length = 0;
  await db.query('DELETE FROM cronce.run');
  behave = (call, response) => reply(response, 200, accept(call));
});

function publishing(overrides: Partial<Coordinator> = {}): Coordinator {
  const sinks = [eventBridgeSink({ bus: 'outcomes', endpoint: bus.url })];
  return coordinatorOn(db.url, { sinks, publishTimeoutMs: 1_000, ...overrides });
}

async function runOnce(coordinator: Coordinator): Promise<RunRecord> {
  return coordinate(deliveryFor(task, slots[slot++] ?? new Date()), 60_000, coordinator);
}

async function unpublished(): Promise<number> {
  const [row] = await db.query('SELECT count(*)::int AS n FROM cronce.run WHERE published_at IS NULL');
  return Number(row?.['n']);
}

describe('the EventBridge sink', () => {
  it('sends the stored record after commit, and marks it as published', async () => {
    const logger = keepingLogger();
    const run = await runOnce(publishing({ logger }));
    expect(bus.calls).toHaveLength(1);
    const [entry] = (bus.calls[0]?.body as PutEvents).Entries;
    expect(bus.calls[0]?.operation).toBe('AWSEvents.PutEvents');
    expect(entry).toMatchObject({ Source: 'cronce', DetailType: 'Run succeeded', EventBusName: 'outcomes' });
    expect(JSON.parse(entry?.Detail ?? '')).toMatchObject({
      id: run.id,
      status: 'succeeded',
      output: { n: 1 },
    });
    expect(await unpublished()).toBe(0);
    expect(logger.lines.map(({ message }) => message)).toEqual(['told succeeded']);
  });

  it('publishes skips too', async () => {
    const delivery = deliveryFor(task, slots[slot++] ?? new Date());
    for (let n = 0; n < 2; n++) await coordinate(delivery, 60_000, publishing());
    const types = bus.calls.flatMap(({ body }) =>
      (body as PutEvents).Entries.map(({ DetailType }) => DetailType),
    );
    expect(types).toEqual(['Run succeeded', 'Run skipped']);
  });

  it.each([
    ['refuses', 400, { __type: 'AccessDeniedException', message: 'no' }],
    ['throttles', 400, { __type: 'ThrottlingException', message: 'slow down' }],
    ['breaks', 500, { __type: 'InternalException', message: 'oops' }],
  ])(
    'fails no run when the bus %s, and a later invocation sends what was left',
    async (_what, status, body) => {
      behave = (_call, response) => reply(response, status, body);
      const logger = keepingLogger();
      expect(await runOnce(publishing({ logger }))).toMatchObject({ status: 'succeeded' });
      expect(await unpublished()).toBe(1);
      expect(logger.lines.map(({ level }) => level)).toEqual(['info', 'warn']);
      await db.query('UPDATE cronce.run SET publish_after = now()'); // as if the pause were over
      bus.calls.length = 0;
      behave = (call, response) => reply(response, 200, accept(call));
      await runOnce(publishing());
      expect((bus.calls[0]?.body as PutEvents).Entries).toHaveLength(2);
      expect(await unpublished()).toBe(0);
    },
  );

  it('takes an entry that failed inside an answer of 200 for not sent', async () => {
    behave = (call, response) =>
      reply(
        response,
        200,
        accept(call, () => true),
      );
    await runOnce(publishing());
    expect(await unpublished()).toBe(1);
    await db.query('UPDATE cronce.run SET publish_after = now()');
    behave = (call, response) =>
      reply(
        response,
        200,
        accept(call, (index) => index === 1),
      );
    await runOnce(publishing());
    expect(await unpublished()).toBe(1);
  });

  it('waits between attempts, longer each time', async () => {
    behave = (_call, response) => reply(response, 500, {});
    await runOnce(publishing());
    const [first] = await db.query(
      'SELECT extract(epoch FROM publish_after - now())::int AS s FROM cronce.run',
    );
    bus.calls.length = 0;
    behave = (call, response) => reply(response, 200, accept(call));
    await runOnce(publishing());
    expect((bus.calls[0]?.body as PutEvents).Entries).toHaveLength(1);
    expect(first?.['s']).toBeGreaterThan(5);
  });

  it('is given up in bounded time when it never answers', async () => {
    behave = () => undefined;
    const startedAt = performance.now();
    expect(await runOnce(publishing({ publishTimeoutMs: 400 }))).toMatchObject({ status: 'succeeded' });
    expect(performance.now() - startedAt).toBeLessThan(400 * 3 + 1_000);
    expect(await unpublished()).toBe(1);
  });

  it('cuts a record that is too large for an event', async () => {
    const large = defineJob({ name: 'large', work: async () => Array<string>(250).fill('x'.repeat(1_000)) });
    await coordinate(deliveryFor(large, slots[slot++] ?? new Date()), 60_000, publishing());
    const [entry] = (bus.calls[0]?.body as PutEvents).Entries;
    expect(JSON.parse(entry?.Detail ?? '')).toMatchObject({
      status: 'succeeded',
      output: { cut: 'too large for an event' },
    });
    expect(await unpublished()).toBe(0);
  });

  it('lets two relays at once send each record from one of them', async () => {
    behave = (_call, response) => reply(response, 500, {});
    for (let n = 0; n < 5; n++) await runOnce(publishing());
    await db.query('UPDATE cronce.run SET publish_after = now()');
    bus.calls.length = 0;
    behave = (call, response) => reply(response, 200, accept(call));
    await Promise.all([runOnce(publishing()), runOnce(publishing())]);
    const ids = bus.calls.flatMap(({ body }) =>
      (body as PutEvents).Entries.map(({ Detail }) => (JSON.parse(Detail) as RunRecord).id),
    );
    expect(new Set(ids).size).toBe(ids.length);
    expect(ids).toHaveLength(7);
  });
});

/** A sink that keeps what it is sent, and answers as it is told to. */
function keepingSink(name: string, answer: (sent: readonly RunRecord[]) => Promise<ReadonlySet<string>>) {
  const calls: RunRecord[][] = [];
  const sink: Sink = {
    name,
    send: async (records) => {
      calls.push([...records]);
      return answer(records);
    },
  };
  const statuses = () => calls.flat().map(({ status }) => status);
  return { sink, calls, statuses };
}

const takesAll = (records: readonly RunRecord[]) => Promise.resolve(new Set(records.map(({ id }) => id)));
const takesNone = () => Promise.resolve(new Set<string>());
const deaf = () => new Promise<never>(() => undefined);

describe('any sink', () => {
  it('is sent the dead run that a claim has settled, and the claim’s own', async () => {
    const s = stage(db);
    await s.run({ lock_delay_ms: 0 });
    const bus = keepingSink('bus', takesAll);
    const shared = defineJob({ name: s.job, work: async () => 1 });
    await coordinate(
      deliveryFor(shared, slots[slot++] ?? new Date()),
      60_000,
      publishing({ sinks: [bus.sink] }),
    );
    expect(bus.statuses().sort()).toEqual(['lost', 'succeeded']);
    expect(await unpublished()).toBe(0);
  });

  it('is not sent another deployment’s dead run, nor is the log: its own sweep tells', async () => {
    const s = stage(db);
    const dead = await s.run({ lock_delay_ms: 0, deployment: 'another' });
    const [bus, logger] = [keepingSink('bus', takesAll), keepingLogger()];
    const shared = defineJob({ name: s.job, work: async () => 1 });
    await coordinate(deliveryFor(shared, slots[slot++] ?? new Date()), 60_000, publishing({ sinks: [bus.sink], logger })); // prettier-ignore
    expect(bus.statuses()).toEqual(['succeeded']);
    expect(logger.lines.map(({ message }) => message)).toEqual([`${s.job} succeeded`]);
    expect(await s.row(dead)).toMatchObject({ status: 'lost', published_at: null });
  });

  it.each([0, 10_000])('is sent a run that was cancelled, with a grace of %d ms', async (graceMs) => {
    const bus = keepingSink('bus', takesAll);
    let begun: () => void = () => undefined;
    const hasBegun = new Promise<void>((resolve) => (begun = resolve));
    const long = defineJob({
      name: `long-${graceMs}`,
      leaseMs: 2_000,
      work: async ({ signal }) => {
        begun();
        await new Promise((resolve) => {
          signal.addEventListener('abort', resolve);
        });
      },
    });
    const running = coordinate(deliveryFor(long, slots[slot++] ?? new Date()), 60_000, publishing({ sinks: [bus.sink] })); // prettier-ignore
    await hasBegun;
    const [row] = await db.query(`SELECT id FROM cronce.run WHERE status = 'running'`);
    const operator = await Session.open(targetOf(db.url));
    await cancelRun(operator, row?.['id'] as string, { by: 'ann', graceMs });
    await operator.close();
    expect(await running).toMatchObject({ status: 'cancelled' });
    expect(bus.statuses()).toEqual(['cancelled']);
    expect(await unpublished()).toBe(0);
  });

  it('gets its part though another does not, and gets nothing twice for the other’s sake', async () => {
    const [good, bad] = [keepingSink('good', takesAll), keepingSink('bad', takesNone)];
    const first = await runOnce(publishing({ sinks: [good.sink, bad.sink] }));
    const sentTo = () =>
      db.query('SELECT published_to, published_at FROM cronce.run WHERE id = $1', [first.id]);
    expect(await sentTo()).toEqual([{ published_to: ['log', 'good'], published_at: null }]);
    await db.query('UPDATE cronce.run SET publish_after = now()');
    const mended = keepingSink('bad', takesAll);
    await runOnce(publishing({ sinks: [good.sink, mended.sink] }));
    const idsOf = ({ calls }: typeof good) => calls.flat().filter(({ id }) => id === first.id);
    expect([idsOf(good).length, idsOf(bad).length, idsOf(mended).length]).toEqual([1, 1, 1]);
    expect(await sentTo()).toMatchObject([
      { published_to: ['log', 'good', 'bad'], published_at: expect.any(Date) as Date },
    ]);
  });

  it('that neither answers nor heeds its signal holds nobody up: the run, the other sinks, the stamps', async () => {
    const [good, mute] = [keepingSink('good', takesAll), keepingSink('mute', deaf)];
    const startedAt = performance.now();
    expect(await runOnce(publishing({ sinks: [mute.sink, good.sink], publishTimeoutMs: 300 }))).toMatchObject(
      {
        status: 'succeeded',
      },
    );
    expect(performance.now() - startedAt).toBeLessThan(10_000);
    expect(await db.query('SELECT published_to, published_at FROM cronce.run')).toEqual([
      { published_to: ['log', 'good'], published_at: null },
    ]);
  });

  it('of a backlog of eleven gets ten at most, one’s own among them, and with the next run the rest', async () => {
    const s = stage(db);
    for (let n = 0; n < 11; n++)
      await s.run({ status: 'failed', final: true, publish_after: after(-60_000) });
    const bus = keepingSink('bus', async (sent) => {
      if (sent.length > 10) throw new Error('ten entries a call');
      return takesAll(sent);
    });
    const own = await runOnce(publishing({ sinks: [bus.sink] }));
    expect(bus.calls[0]).toHaveLength(10);
    expect(bus.calls[0]?.[0]).toMatchObject({ id: own.id });
    await runOnce(publishing({ sinks: [bus.sink] }));
    expect(await unpublished()).toBe(0);
    expect(new Set(bus.calls.flat().map(({ id }) => id)).size).toBe(bus.calls.flat().length);
  });
});

it.each<[Status, string]>([
  ['succeeded', 'info'],
  ['failed', 'error'],
  ['timed_out', 'error'],
  ['lost', 'error'],
  ['missed', 'error'],
  ['cancelled', 'info'],
  ['skipped', 'info'],
])('the log line of one that is %s is of level %s', async (status, level) => {
  const s = stage(db);
  const logger = keepingLogger();
  logOutcome(await s.askOf<RunRecord>(await s.run({ status }), 'record(r)'), logger);
  expect(logger.lines).toMatchObject([{ level }]);
});
