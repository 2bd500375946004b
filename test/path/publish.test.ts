import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { cancelRun } from '../../src/path/cancel.ts';
import { coordinate as deliver, type Coordinator } from '../../src/coordinate.ts';
import { defineJob } from '../../src/job.ts';
import { Session } from '../../src/postgres/session.ts';
import { logLine } from '../../src/observe/log-line.ts';
import { triesAtMost } from '../../src/path/publish.ts';
import type { Sink } from '../../src/sinks/sink.ts';
import type { PublishError, RunRecord, Status } from '../../src/run.ts';
import { findRun } from '../../src/operate/history.ts';
import { eventBridgeSink } from '../../src/sinks/eventbridge.ts';
import { reply, startAwsEndpoint, type AwsEndpoint, type Call } from '../support/aws.ts';
import { coordinatorOn, deliveryFor, keepingLogger, targetOf } from '../support/coordinator.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { after, stage } from '../support/rows.ts';

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
  await import('@aws-sdk/client-eventbridge'); // loaded anew it may take longer than a relay is given here
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

/** And waits until its last words, which nobody waits for, have come through: until its sessions are gone. */
async function coordinate(...delivery: Parameters<typeof deliver>): Promise<RunRecord> {
  const run = await deliver(...delivery);
  await db.assertNoLeaks().catch(() => undefined); // where a test has others open
  return run;
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

/** As EventBridge counts: 256 KB and ten entries a call, or it takes none of them. */
function strictly(call: Call, failing?: (index: number) => boolean): [number, unknown] {
  const { Entries } = call.body as PutEvents;
  const sizes = Entries.map(
    (entry) => Buffer.byteLength(entry.Source + entry.DetailType + entry.Detail) + 14,
  );
  if (Entries.length > 10) return [400, { __type: 'ValidationException', message: 'too many entries' }];
  if (sizes.reduce((sum, size) => sum + size, 0) > 256 * 1_024)
    return [
      400,
      {
        __type: 'ValidationException',
        message: 'Total size of the entries in the request is over the limit.',
      },
    ];
  return [200, accept(call, failing)];
}

const detailsOf = (calls: readonly Call[]) =>
  calls.flatMap(({ body }) =>
    (body as PutEvents).Entries.map(({ Detail }) => JSON.parse(Detail) as RunRecord),
  );

describe('an outcome that the bus does not take', () => {
  const waiting = { status: 'failed', final: true, publish_after: after(-60_000) };
  const large = (n: number) => 'é'.repeat(n);

  async function outbox(id: string): Promise<PublishError | null> {
    const [row] = await db.query('SELECT publish_error FROM cronce.run WHERE id = $1', [id]);
    return row?.['publish_error'] as PublishError | null;
  }

  it.each<[string, Record<string, unknown>, (sent: RunRecord) => unknown]>([
    ['error', { error: { name: 'E', message: large(200_000), errors: [] } }, ({ error }) => error],
    [
      'error, by its causes',
      { error: { name: 'E', message: 'why', cause: { name: 'E', message: large(200_000) } } },
      ({ error }) => error,
    ],
    ['output', { output: large(200_000) }, ({ output }) => output],
    ['params', { params: large(200_000) }, ({ params }) => params],
  ])('since its %s is too large is cut there, says so, and holds nobody up', async (_what, columns, part) => {
    behave = (call, response) => reply(response, ...strictly(call));
    const s = stage(db);
    const good = [await s.run(waiting), await s.run(waiting)];
    const id = await s.run({ ...waiting, output: 'kept', params: 'kept', ...columns });
    await runOnce(publishing());
    const sent = detailsOf(bus.calls);
    expect(sent.map((one) => one.id)).toEqual(expect.arrayContaining([id, ...good]));
    const cut = sent.find((one) => one.id === id) as RunRecord;
    expect(part(cut)).toMatchObject({ cut: 'too large for an event' });
    if (cut.error) expect(cut.error).toMatchObject({ name: 'E', message: expect.any(String) as string });
    expect([cut.output, cut.params]).toContain('kept'); // no more than has to be
    expect(await unpublished()).toBe(0);
  });

  it('in all its parts, and in its names, is cut in all of them', async () => {
    behave = (call, response) => reply(response, ...strictly(call));
    const s = stage(db);
    const [text, error] = [large(150_000), { name: 'E', message: large(150_000) }];
    const id = await s.run({
      ...waiting,
      output: text,
      params: text,
      error,
      requested_by: text,
      lock_name: text,
    });
    await runOnce(publishing());
    const cut = detailsOf(bus.calls).find((one) => one.id === id);
    expect(cut).toMatchObject({
      requestedBy: expect.stringContaining('(cut: too large for an event)') as string,
    });
    expect(await unpublished()).toBe(0);
  });

  it('with the rest of its call is alone in the next one, and tried again by itself', async () => {
    const s = stage(db);
    const bad = await s.run({ ...waiting, output: 'poison' });
    for (let n = 0; n < 5; n++) await s.run(waiting);
    behave = (call, response) =>
      JSON.stringify(call.body).includes('poison')
        ? reply(response, 400, { __type: 'ValidationException', message: 'no JSON object' })
        : reply(response, 200, accept(call));
    const logger = keepingLogger();
    await runOnce(publishing({ logger }));
    expect(bus.calls.map(({ body }) => (body as PutEvents).Entries.length)).toEqual([7, 1, 1, 1, 1, 1, 1, 1]);
    expect(await unpublished()).toBe(1);
    const failures = [
      { sink: 'eventbridge:outcomes', code: 'ValidationException', message: 'no JSON object' },
    ];
    expect(await outbox(bad)).toEqual({ tries: 1, givenUp: false, failures });
    expect(logger.lines.filter(({ level }) => level === 'warn')).toMatchObject([
      { fields: { runs: [bad], code: 'ValidationException', error: 'no JSON object' } },
    ]);
    bus.calls.length = 0;
    await runOnce(publishing());
    expect(bus.calls.map(({ body }) => (body as PutEvents).Entries.length)).toEqual([1]); // it waits
  });

  it.each([
    ['ThrottlingException', 400],
    ['AccessDeniedException', 403],
  ])('for no fault of its own (%s) is not sent anew one by one', async (__type, status) => {
    const s = stage(db);
    for (let n = 0; n < 5; n++) await s.run(waiting);
    behave = (_call, response) => reply(response, status, { __type, message: 'not now' });
    await runOnce(publishing());
    expect(bus.calls.every(({ body }) => (body as PutEvents).Entries.length === 6)).toBe(true);
    const rows = await db.query(
      `SELECT DISTINCT publish_error #>> '{failures,0,code}' AS code FROM cronce.run`,
    );
    expect(rows).toEqual([{ code: __type }]);
  });

  it('inside an answer of 200 is logged, and kept, by the bus’s own code', async () => {
    const hostile = 'a\u0000b \ud800';
    behave = (call, response) => {
      const { Entries } = call.body as PutEvents;
      const refused = {
        ErrorCode: 'NotAuthorizedForSourceException',
        ErrorMessage: hostile,
      };
      const answers = Entries.map((_, index) => (index === 0 ? refused : { EventId: `e${index}` }));
      reply(response, 200, { FailedEntryCount: 1, Entries: answers });
    };
    await stage(db).run(waiting);
    const logger = keepingLogger();
    const own = await runOnce(publishing({ logger }));
    expect(logger.lines.find(({ level }) => level === 'warn')).toMatchObject({
      fields: { runs: [own.id], code: 'NotAuthorizedForSourceException' },
    });
    expect(await outbox(own.id)).toMatchObject({ failures: [{ code: 'NotAuthorizedForSourceException' }] });
    expect(await unpublished()).toBe(1);
  });

  it.each([
    [0, 10],
    [3, 80],
    [8, 2_560],
    [20, 3_600],
  ])('waits after %d tries for %d s', async (tries, seconds) => {
    behave = (_call, response) => reply(response, 500, {});
    const id = await stage(db).run({ ...waiting, publish_attempts: tries });
    await runOnce(publishing());
    const [row] = await db.query(
      `SELECT extract(epoch FROM publish_after - clock_timestamp())::int AS s, publish_attempts AS n FROM cronce.run WHERE id = $1`,
      [id],
    );
    expect(row?.['n']).toBe(tries + 1);
    expect(Number(row?.['s'])).toBeGreaterThan(seconds - 9);
    expect(Number(row?.['s'])).toBeLessThanOrEqual(seconds);
  });

  it(`is given up after ${triesAtMost} tries: an error in the log, the reason on its record, and no further try`, async () => {
    behave = (_call, response) => reply(response, 400, { __type: 'ValidationException', message: 'no' });
    const id = await stage(db).run({ ...waiting, publish_attempts: triesAtMost - 1 });
    const logger = keepingLogger();
    await runOnce(publishing({ logger }));
    const why = {
      tries: triesAtMost,
      givenUp: true,
      failures: [{ code: 'ValidationException', message: 'no' }],
    };
    expect(await outbox(id)).toMatchObject(why);
    expect(
      logger.lines.filter(({ level, message }) => level === 'error' && message.includes('given up')),
    ).toMatchObject([{ fields: { runs: [id], ...why } }]);
    const session = await Session.open(targetOf(db.url));
    expect(await findRun(session, id)).toMatchObject({ publishError: why, publishedAt: null });
    await session.close();
    bus.calls.length = 0;
    behave = (call, response) => reply(response, 200, accept(call));
    await runOnce(publishing());
    expect(detailsOf(bus.calls).map((one) => one.id)).not.toContain(id);
  });

  it('and is taken later has nothing against it any more', async () => {
    behave = (_call, response) => reply(response, 500, {});
    const { id } = await runOnce(publishing());
    expect(await outbox(id)).toMatchObject({ tries: 1 });
    await db.query('UPDATE cronce.run SET publish_after = now()');
    behave = (call, response) => reply(response, 200, accept(call));
    await runOnce(publishing());
    expect(await outbox(id)).toBeNull();
  });

  it('because time is up is tried again, and what had arrived before is not', async () => {
    const s = stage(db);
    const big = { ...waiting, output: 'x'.repeat(150_000) };
    const ids = [await s.run(big), await s.run(big)];
    behave = (call, response) => (bus.calls.length === 1 ? reply(response, 200, accept(call)) : undefined);
    await runOnce(publishing({ publishTimeoutMs: 1_500 }));
    const left = await db.query('SELECT id, publish_error FROM cronce.run WHERE published_at IS NULL');
    expect(left).toHaveLength(1);
    expect(ids).toContain(left[0]?.['id']);
    expect(left[0]?.['publish_error']).toMatchObject({ failures: [{ code: 'TimeoutError' }] });
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

  it('that is added later gets nothing of what is done with, and what waits still ends', async () => {
    const [old, added] = [keepingSink('old', takesAll), keepingSink('added', takesNone)];
    await runOnce(publishing({ sinks: [old.sink] }));
    const second = await runOnce(publishing({ sinks: [old.sink, added.sink] }));
    expect(added.calls.flat().map(({ id }) => id)).toEqual([second.id]);
    // … and is taken away again: nothing is owed to it any more.
    await db.query('UPDATE cronce.run SET publish_after = now()');
    await runOnce(publishing({ sinks: [old.sink] }));
    expect(await unpublished()).toBe(0);
    expect(old.calls.flat().filter(({ id }) => id === second.id)).toHaveLength(1);
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
  logLine(logger).recorded?.(await s.askOf<RunRecord>(await s.run({ status }), 'record(r)'));
  expect(logger.lines).toMatchObject([{ level }]);
});

it('a filter keeps an outcome from its sink, and the outcome is done with all the same', async () => {
  const sent: string[] = [];
  const sink: Sink = {
    name: 'picky',
    wants: ({ status }) => status === 'failed',
    send: async (records) => {
      sent.push(...records.map(({ status }) => status));
      return new Set(records.map(({ id }) => id));
    },
  };
  const failing = defineJob({ name: 'failing', work: async () => Promise.reject(new Error('no')) });
  const ended: RunRecord[] = [];
  for (const job of [task, failing])
    ended.push(await coordinate(deliveryFor(job, slots[0] as Date), 60_000, publishing({ sinks: [sink] })));
  expect(sent).toEqual(['failed']);
  const rows = await db.query('SELECT id FROM cronce.run WHERE published_at IS NOT NULL ORDER BY id');
  expect(rows.map(({ id }) => id)).toEqual(ended.map(({ id }) => id));
});
