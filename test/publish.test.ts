import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { coordinate, type Coordinator } from '../src/coordinate.ts';
import { defineJob } from '../src/job.ts';
import type { RunRecord } from '../src/run.ts';
import { eventBridgeSink } from '../src/sinks/eventbridge.ts';
import { reply, startAwsEndpoint, type AwsEndpoint, type Call } from './support/aws.ts';
import { coordinatorOn, deliveryFor, keepingLogger } from './support/coordinator.ts';
import { freshDatabase, type TestDatabase } from './support/database.ts';

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
