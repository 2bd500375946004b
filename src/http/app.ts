import { Hono, type Context, type MiddlewareHandler } from 'hono';
import { bodyLimit } from 'hono/body-limit';
import { methodNotAllowed } from 'hono/method-not-allowed';
import { routePath } from 'hono/route';
import * as v from 'valibot';
import { checkSchema, findRun, findRuns, jobStates, latestRuns, type RunFilter } from '../history.ts';
import type { Job, Registry } from '../job.ts';
import { pauseJob, resumeJob } from '../pause.ts';
import type { Session } from '../postgres/session.ts';
import { outcomes, skipReasons, type Logger } from '../run.ts';
import { captureText } from '../capture.ts';
import { authenticate, mayRun, type Caught, type Tokens } from './access.ts';
import { optionsOf, viewOf } from './jobs.ts';
import { lend } from './lend.ts';
import { largestBody, readManualRun, readObject, tooLarge, waitIn } from './manual-run.ts';
import { page, pagePolicy } from './page.ts';
import { Problem, problemOf } from './problem.ts';
import { runsAt, runsOf, start, type Starting } from './start.ts';

/** What the app needs of the world. It never learns where it runs. */
export interface HttpOptions extends Tokens, Starting {
  readonly registry: Registry;
  readonly now: () => Date;
}

const healthLimitMs = 2_000;
const readLimitMs = 10_000;
const runsShown = { perJob: 10, onPage: 30 } as const;

export function createApp(options: HttpOptions): Hono<Caught> {
  const app = new Hono<Caught>();
  app.onError((error, c) => answerProblem(error, c, options.logger));
  app.notFound(() => new Problem(404, 'no_such_route', 'There is nothing here.').response());
  app.use(securityHeaders);
  app.get('/healthz', async (c) => {
    await lend(options.openSession, healthLimitMs, checkSchema);
    return c.json({ status: 'ok' });
  });
  app.use(authenticate(options));
  app.use(methodNotAllowed({ app, onMethodNotAllowed: (_, methods) => refuseMethod(methods) }));
  showJobs(app, options);
  showRuns(app, options);
  startRuns(app, options);
  pauseJobs(app, options);
  return app;
}

function showJobs(app: Hono<Caught>, { registry, openSession, now, deployment }: HttpOptions): void {
  const all = [...registry.values()];

  app.get('/', async (c) => {
    const { jobs, latest } = await lend(openSession, readLimitMs, async (session) => ({
      jobs: await viewJobs(session, all, now(), deployment),
      latest: await findRuns(session, { limit: runsShown.onPage, deployment }),
    }));
    c.header('content-security-policy', pagePolicy);
    return c.html(page({ jobs, latest, now: now(), origin: originOf(c), deployment }));
  });

  app.get('/jobs', async (c) => {
    const views = await lend(openSession, readLimitMs, async (session) =>
      viewJobs(session, all, now(), deployment),
    );
    return c.json({ jobs: views.map(({ runs, ...view }) => ({ ...view, latestRun: runs[0] ?? null })) });
  });

  app.get('/jobs/:name', async (c) => {
    const job = findJob(registry, c.req.param('name'));
    const [view] = await lend(openSession, readLimitMs, async (session) =>
      viewJobs(session, [job], now(), deployment),
    );
    return c.json({ ...view, options: optionsOf(job) });
  });
}

/** Behind Lambda's adapter every URL says https; locally it isn't so. */
function originOf(c: Context): string {
  const { origin, host } = new URL(c.req.url);
  return c.req.header('x-forwarded-proto') === 'http' ? `http://${host}` : origin;
}

function showRuns(app: Hono<Caught>, { openSession, deployment }: HttpOptions): void {
  app.get('/runs', async (c) => {
    const filter = filterIn(c.req.queries());
    const oneMore = { ...filter, deployment, limit: filter.limit + 1 };
    const found = await lend(openSession, readLimitMs, async (session) => findRuns(session, oneMore));
    const runs = found.slice(0, filter.limit);
    return c.json({ runs, next: found.length > runs.length ? runs.at(-1)?.id : null });
  });

  app.get('/runs/:id', async (c) => {
    const id = c.req.param('id');
    const run = uuid.test(id)
      ? await lend(openSession, readLimitMs, async (session) => findRun(session, id, deployment))
      : undefined;
    if (!run) throw new Problem(404, 'no_such_run', 'No run has this id.');
    return c.json(run);
  });
}

function startRuns(app: Hono<Caught>, options: HttpOptions): void {
  const isKnownSlot = async (job: string, slot: string) =>
    lend(
      options.openSession,
      readLimitMs,
      async (session) => (await runsOf(session, job, slot, options.deployment)).length > 0,
    );
  const limit = bodyLimit({ maxSize: largestBody, onError: () => tooLarge().response() });

  app.post('/jobs/:name/runs', mayRun, limit, async (c) => {
    const job = findJob(options.registry, c.req.param('name'));
    const around = { requestedBy: c.get('caller').name, now: options.now(), isKnownSlot };
    const request = await readManualRun(c.req, job, around);
    const waitS = waitIn(c.req.header('prefer'));
    if (waitS > 0) c.header('preference-applied', `wait=${waitS}`);
    const run = await start(options, request, waitS * 1_000);
    return run ? c.json(run, 200, { 'content-location': `/runs/${run.id}` }) : accepted(c, request.cronce);
  });
}

const pauseShape = v.strictObject({
  reason: v.optional(v.pipe(v.string(), v.minLength(1), v.maxLength(500))),
});

function pauseJobs(app: Hono<Caught>, { registry, openSession, deployment }: HttpOptions): void {
  const limit = bodyLimit({ maxSize: largestBody, onError: () => tooLarge().response() });

  app.post('/jobs/:name/pause', mayRun, limit, async (c) => {
    const { name } = findJob(registry, c.req.param('name'));
    const expected = 'The body is an object with, at most, reason (a text of 1 to 500 characters).';
    const { reason } = await readObject(c.req, pauseShape, expected);
    const why = reason === undefined ? null : captureText(reason);
    const by = c.get('caller').name;
    return c.json(
      await lend(openSession, readLimitMs, async (session) => pauseJob(session, name, by, why, deployment)),
    );
  });

  app.post('/jobs/:name/resume', mayRun, async (c) => {
    const { name } = findJob(registry, c.req.param('name'));
    const by = c.get('caller').name;
    return c.json(
      await lend(openSession, readLimitMs, async (session) => resumeJob(session, name, by, deployment)),
    );
  });
}

function answerProblem(error: Error, c: Context, logger: Logger): Response {
  const problem = problemOf(error);
  if (problem.status >= 500)
    logger.error(problem.message, { code: problem.code, route: routePath(c), error: problem.cause });
  return problem.response();
}

const securityHeaders: MiddlewareHandler = async (c, next) => {
  await next();
  const headers = {
    'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
    'cross-origin-resource-policy': 'same-origin',
    'cache-control': 'no-store',
  };
  for (const [name, value] of Object.entries(headers))
    if (!c.res.headers.has(name)) c.res.headers.set(name, value);
};

function refuseMethod(methods: readonly string[]): Response {
  const allow = methods.join(', ');
  return new Problem(405, 'method_not_allowed', `Here one may ${allow}.`, { headers: { allow } }).response();
}

function findJob(registry: Registry, name: string): Job {
  const job = registry.get(name);
  if (job) return job;
  throw new Problem(404, 'no_such_job', 'No job has this name.', {
    extensions: { known: [...registry.keys()] },
  });
}

async function viewJobs(session: Session, jobs: readonly Job[], now: Date, deployment: string | undefined) {
  const states = await jobStates(session, deployment);
  const latest = await latestRuns(
    session,
    jobs.map(({ name }) => name),
    runsShown.perJob,
    deployment,
  );
  return jobs.map((job) => {
    const runs = latest.get(job.name) ?? [];
    return { ...viewOf(job, { state: states.get(job.name), runs, now }), runs };
  });
}

// --- GET /runs ----------------------------------------------------------------------------------

const uuid = /^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$/i;
const limitWords = 'a whole number from 1 to 200';

const filterShape = v.strictObject({
  job: v.optional(v.string()),
  slot: v.optional(v.string()),
  status: v.optional(v.picklist(['running', ...outcomes], ['running', ...outcomes].join(', '))),
  reason: v.optional(v.picklist(skipReasons, skipReasons.join(', '))),
  before: v.optional(v.pipe(v.string(), v.regex(uuid, 'the cursor that came as `next`'))),
  limit: v.pipe(
    v.optional(v.string(), '50'),
    v.regex(/^\d{1,3}$/, limitWords),
    v.transform(Number),
    v.minValue(1, limitWords),
    v.maxValue(200, limitWords),
  ),
});

/** Strict, since a filter with a slip in its name would quietly answer too much. */
function filterIn(queries: Readonly<Record<string, readonly string[]>>): RunFilter {
  if (Object.values(queries).some(({ length }) => length > 1)) throw badQuery('Give each filter once.');
  const given = Object.fromEntries(Object.entries(queries).map(([key, values]) => [key, values[0]]));
  const parsed = v.safeParse(filterShape, given);
  if (parsed.success) return parsed.output;
  const [{ path, message }] = parsed.issues;
  const key = String(path?.[0]?.key);
  throw badQuery(key in filterShape.entries ? `${key}; allowed: ${message}.` : 'A filter that is none here.');
}

function badQuery(detail: string): Problem {
  return new Problem(400, 'bad_query', detail, { extensions: { known: Object.keys(filterShape.entries) } });
}

function accepted(c: Context, { job, slot }: { readonly job: string; readonly slot: string }): Response {
  const runs = runsAt(job, slot);
  return c.json({ job, slot, runs }, 202, { location: runs, 'retry-after': '1' });
}
