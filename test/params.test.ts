/** What a job's params must be like, by whatever library of Standard Schema: typed, refused early, and refused for good. */
import { type } from 'arktype';
import * as v from 'valibot';
import { afterAll, beforeAll, describe, expect, expectTypeOf, it } from 'vitest';
import { z } from 'zod';
import { coordinate } from '../src/coordinate.ts';
import { defineJob, defineJobs, type Job } from '../src/job.ts';
import { checkParams } from '../src/params.ts';
import { deliveryOf } from '../src/path/trigger.ts';
import type { Json, RunRecord } from '../src/run.ts';
import { coordinatorOn } from './support/coordinator.ts';
import { freshDatabase, type TestDatabase } from './support/database.ts';
import { client, expectProblem } from './support/http.ts';

let db: TestDatabase;
beforeAll(async () => void (db = await freshDatabase()));
afterAll(async () => db.drop());

interface Report {
  readonly tenant: string;
  readonly days: number;
}

/** Each says the same: a tenant, and days, 7 where they are not said. */
const byZod = defineJob({
  name: 'by-zod',
  params: z.object({ tenant: z.string().min(1), days: z.number().int().default(7) }),
  work: async ({ params }) => {
    expectTypeOf(params).toEqualTypeOf<{ tenant: string; days: number }>();
    return params;
  },
});
const byValibot = defineJob({
  name: 'by-valibot',
  params: v.object({ tenant: v.pipe(v.string(), v.minLength(1)), days: v.optional(v.number(), 7) }),
  work: async ({ params }) => {
    expectTypeOf(params).toEqualTypeOf<{ tenant: string; days: number }>();
    return params;
  },
});
const byArkType = defineJob({
  name: 'by-arktype',
  params: type({ tenant: 'string > 0', days: 'number = 7' }),
  work: async ({ params }) => {
    expectTypeOf(params.tenant).toEqualTypeOf<string>();
    expectTypeOf(params.days).toEqualTypeOf<number>();
    return params;
  },
});
const free = defineJob({
  name: 'free',
  work: async ({ params }) => {
    expectTypeOf(params).toEqualTypeOf<Json>();
    return params;
  },
});
const registry = defineJobs([byZod, byValibot, byArkType, free]);

let made = 0;
async function deliver(job: Job, params: Json): Promise<RunRecord> {
  const event = { cronce: { job: job.name, trigger: 'manual', slot: `manual:${(made += 1)}`, params } };
  const delivery = deliveryOf(event, {
    registry: new Map([[job.name, job]]),
    ownJob: job.name,
    deliveryId: `delivery-${made}`,
    now: new Date(),
  });
  return coordinate(delivery, 60_000, coordinatorOn(db.url));
}

describe.each([byZod, byValibot, byArkType])('$name', (job) => {
  it('gives the work what the schema makes of params, and records what was sent', async () => {
    const run = await deliver(job, { tenant: 'acme' });
    expect([run.status, run.output, run.params]).toEqual([
      'succeeded',
      { tenant: 'acme', days: 7 } satisfies Report,
      { tenant: 'acme' },
    ]);
  });

  it.each([
    ['a wrong type', { tenant: 'acme', days: 'seven' }, '/days'],
    ['what is missing', { days: 1 }, '/tenant'],
    ['what is too short', { tenant: '' }, '/tenant'],
    ['another kind of value', [1, 2], ''],
    ['none at all', null, ''],
  ])(
    'refuses %s: 422 with the place from the API, failed for good by the run',
    async (_, params, pointer) => {
      const { ask, started } = client(db.url, { changes: { registry } });
      const answer = await ask(`/jobs/${job.name}/runs`, { method: 'POST', body: { params } });
      expectProblem(answer, 422, 'params_invalid');
      const { issues } = answer.json as { issues: { pointer: string; message: string }[] };
      expect([answer.json['pointer'], issues.some((issue) => issue.pointer === `/params${pointer}`)]).toEqual(
        [
          issues[0]?.pointer,
          // What an array lacks of an object is told by some at each key.
          pointer !== '' || issues.some((issue) => issue.pointer === '/params'),
        ],
      );
      expect(started).toEqual([]);

      const run = await deliver(job, params);
      expect([run.status, run.final, run.attempt]).toEqual(['failed', true, 1]);
      expect(run.error).toMatchObject({
        name: 'ParamsError',
        message: expect.stringContaining(`params don't fit the job's schema: ${pointer}`) as string,
      });
    },
  );

  it('takes what fits, from the API, and hands over what was sent', async () => {
    const { ask, started } = client(db.url, { changes: { registry } });
    const answer = await ask(`/jobs/${job.name}/runs`, { method: 'POST', body: { params: { tenant: 'a' } } });
    expect(answer.status).toBe(202);
    expect(started[0]?.cronce.params).toEqual({ tenant: 'a' });
  });
});

it('takes anything where no schema is said', async () => {
  expect((await deliver(free, [1, 'two'])).output).toEqual([1, 'two']);
});

describe('a job with a schedule', () => {
  const schedule = 'rate(5 minutes)';
  const work = async ({ params }: { params: unknown }) => params;

  it('has params by the schema’s default', async () => {
    const job = defineJob({
      name: 'paced',
      schedule,
      params: z.object({ days: z.number() }).default({ days: 3 }),
      work,
    });
    expect((await deliver(job, null)).output).toEqual({ days: 3 });
  });

  it.each([
    ['undefined', z.object({}).optional()],
    ['null', z.object({}).nullable()],
    ['either', v.nullish(v.object({}))],
  ])('may have none where the schema takes %s', async (_, params) => {
    const job = defineJob({ name: 'bare', schedule, params, work });
    expect((await deliver(job, null)).status).toBe('succeeded');
  });

  it('can’t be declared with a schema that wants some', () => {
    expect(() => defineJob({ name: 'wanting', schedule, params: z.object({ a: z.string() }), work })).toThrow(
      /^job "wanting": params is .*; allowed: beside a schedule, one that does without params: give it a default$/,
    );
  });
});

it.each([null, 'text', {}, { '~standard': { version: 2 } }, () => true])(
  'refuses %o as a schema',
  (params) => {
    const declare = () => defineJob({ name: 'odd', params: params as never, work: async () => 1 });
    expect(declare).toThrow(
      /^job "odd": params is .*; allowed: a schema of Zod, Valibot, ArkType or another/,
    );
  },
);

describe('schemas that are slow, or break', () => {
  it('waits for one that asks elsewhere', async () => {
    const known = z.string().refine(async (name) => Promise.resolve(name === 'acme'), 'no such tenant');
    expect(await checkParams(known, 'acme')).toEqual({ params: 'acme' });
    expect(await checkParams(known, 'other')).toEqual({
      issues: [{ pointer: '', message: 'no such tenant' }],
    });
  });

  it.each([
    [
      'throws',
      () => {
        throw new Error('no look-up now');
      },
    ],
    ['rejects', async () => Promise.reject(new Error('no look-up now'))],
  ])('tells what one says that %s', async (_, validate) => {
    const schema = { '~standard': { version: 1 as const, vendor: 'own', validate } };
    expect(await checkParams(schema, 1)).toEqual({ issues: [{ pointer: '', message: 'no look-up now' }] });
  });

  it('tells the first of many issues, and points by RFC 6901', async () => {
    const many = z.array(z.number());
    const checked = await checkParams(
      many,
      Array.from({ length: 500 }, () => 'x'),
    );
    expect('issues' in checked && checked.issues).toHaveLength(10);
    const odd = await checkParams(z.object({ 'a/b~c': z.number() }), { 'a/b~c': 'x' });
    expect(odd).toMatchObject({ issues: [{ pointer: '/a~1b~0c' }] });
  });
});
