import { Hono, type Context, type MiddlewareHandler } from 'hono';
import { methodNotAllowed } from 'hono/method-not-allowed';
import { routePath } from 'hono/route';
import * as v from 'valibot';
import { dueRecord } from '../sweep/due.ts';
import { checkSchema, findRun, findRuns, jobStates, latestRuns, type RunFilter } from '../operate/history.ts';
import type { Job, Registry } from '../job.ts';
import { pauseJob, resumeJob } from '../operate/pause.ts';
import type { Session } from '../postgres/session.ts';
import { outcomes, skipReasons, type Logger } from '../run.ts';
import { slotName } from '../path/trigger.ts';
import { authenticate, mayRun, type Caught, type Guarding, type Tokens } from './access.ts';
import { limitBody, readObject } from './body.ts';
import { Health } from './health.ts';
import { optionsOf, viewOf } from './jobs.ts';
import { lend } from './lend.ts';
import { readManualRun, reasonShape, slotTime, waitIn } from './manual-run.ts';
import { page, pagePolicy } from './page.ts';
import { Problem, problemOf } from './problem.ts';
import { badQuery, cleanPath, noQuery, queryIn } from './query.ts';
import { Refusals } from './refusals.ts';
import { runsAt, start, type Starting } from './start.ts';

/** What the app needs of the world. It never learns where it runs. */
export interface HttpOptions extends Tokens, Starting, Partial<Guarding> {
  readonly registry: Registry;
  readonly now: () => Date;
  /** Those of a process whose apps are made for one request each. */
  readonly health?: Health;
}

const healthLimitMs = 2_000;
const readLimitMs = 10_000;
const runsShown = { perJob: 10, onPage: 30 } as const;

export function createApp(options: HttpOptions): Hono<Caught> {
  const app = new Hono<Caught>();
  app.onError((error, c) => answerProblem(error, c, options.logger));
  app.notFound(() => new Problem(404, 'no_such_route', 'There is nothing here.').response());
  app.use(securityHeaders);
  const { health = healthOf(options.openSession), refusals = new Refusals() } = options;
  app.get('/healthz', async (c) => {
    await health.check();
    return c.json({ status: 'ok' });
  });
  app.use(authenticate({ sourceOf: () => null, ...options, refusals }));
  app.use(cleanPath);
  app.use(methodNotAllowed({ app, onMethodNotAllowed: (_, methods) => refuseMethod(methods) }));
  showJobs(app, options);
  showRuns(app, options);
  startRuns(app, options);
  pauseJobs(app, options);
  return app;
}

export function healthOf(openSession: HttpOptions['openSession']): Health {
  return new Health(async () => lend(openSession, healthLimitMs, checkSchema));
}

function showJobs(
  app: Hono<Caught>,
  { registry, openSession, now, deployment, base = '' }: HttpOptions,
): void {
  const all = [...registry.values()];

  app.get('/', async (c) => {
    const { jobs, latest } = await lend(openSession, readLimitMs, async (session) => ({
      jobs: await viewJobs(session, all, now(), deployment),
      latest: await findRuns(session, { limit: runsShown.onPage, deployment }),
    }));
    c.header('content-security-policy', pagePolicy(base));
    return c.html(page({ jobs, latest, now: now(), origin: originOf(c), base, deployment }));
  });

  app.get('/jobs', noQuery, async (c) => {
    const views = await lend(openSession, readLimitMs, async (session) =>
      viewJobs(session, all, now(), deployment),
    );
    return c.json({ jobs: views.map(({ runs, ...view }) => ({ ...view, latestRun: runs[0] ?? null })) });
  });

  app.get('/jobs/:name', noQuery, async (c) => {
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
    const filter = filterIn(queryIn(c, filters));
    const oneMore = { ...filter, deployment, limit: filter.limit + 1 };
    const found = await lend(openSession, readLimitMs, async (session) => findRuns(session, oneMore));
    const runs = found.slice(0, filter.limit);
    return c.json({ runs, next: found.length > runs.length ? runs.at(-1)?.id : null });
  });

  app.get('/runs/:id', noQuery, async (c) => {
    const id = c.req.param('id');
    const run = uuid.test(id)
      ? await lend(openSession, readLimitMs, async (session) => findRun(session, id, deployment))
      : undefined;
    if (!run) throw new Problem(404, 'no_such_run', 'No run has this id.');
    return c.json(run);
  });
}

function startRuns(app: Hono<Caught>, options: HttpOptions): void {
  const { openSession, deployment, base = '' } = options;
  const recordOf = async (job: string, slot: string) =>
    lend(openSession, readLimitMs, async (session) => dueRecord(session, job, slot, deployment));

  app.post('/jobs/:name/runs', mayRun, noQuery, limitBody, async (c) => {
    const job = findJob(options.registry, c.req.param('name'));
    const around = { requestedBy: c.get('caller').name, now: options.now(), dueRecord: recordOf };
    const asked = await readManualRun(c.req, job, around);
    const waitS = waitIn(c.req.header('prefer'));
    if (waitS > 0) c.header('preference-applied', `wait=${waitS}`);
    const run = await start(options, asked, waitS * 1_000);
    if (run) return c.json(run, 200, { 'content-location': `${base}/runs/${run.id}` });
    const { slot } = asked.request.cronce;
    const runs = runsAt(job.name, slot, base);
    return c.json({ job: job.name, slot, runs }, 202, { location: runs, 'retry-after': '1' });
  });
}

function pauseJobs(app: Hono<Caught>, { registry, openSession, deployment }: HttpOptions): void {
  app.post('/jobs/:name/pause', mayRun, noQuery, limitBody, async (c) => {
    const { name } = findJob(registry, c.req.param('name'));
    const expected =
      'The body is an object with, at most, reason (a text of 1 to 500 characters without control characters).';
    const { reason = null } = await readObject(c.req, { reason: reasonShape }, expected);
    const by = c.get('caller').name;
    return c.json(
      await lend(openSession, readLimitMs, async (session) =>
        pauseJob(session, name, by, reason, deployment),
      ),
    );
  });

  app.post('/jobs/:name/resume', mayRun, noQuery, async (c) => {
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
  secured(c.res);
};

/** Also for answers that the app has no part in. */
export function secured(response: Response): Response {
  const headers = {
    'content-security-policy': "default-src 'none'; frame-ancestors 'none'",
    'x-content-type-options': 'nosniff',
    'referrer-policy': 'no-referrer',
    'cross-origin-resource-policy': 'same-origin',
    'cache-control': 'no-store',
  };
  for (const [name, value] of Object.entries(headers))
    if (!response.headers.has(name)) response.headers.set(name, value);
  return response;
}

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

const filters = Object.keys(filterShape.entries);

function filterIn(given: Readonly<Record<string, string>>): RunFilter {
  const parsed = v.safeParse(filterShape, given);
  if (!parsed.success) {
    const [{ path, message }] = parsed.issues;
    const name = String(path?.[0]?.key);
    throw badQuery(filters, `${name}; allowed: ${message}.`, name);
  }
  const { slot, ...others } = parsed.output;
  return slot === undefined ? others : { ...others, slot: slotIn(slot) };
}

/** However a time is written: a slot has its one name. In a query a bare `+` means a space, and none belongs in a time. */
function slotIn(given: string): string {
  const at = slotTime(given.replace(/^(\d{4}-\d\d-\d\dT[\d:.]+) (?=\d\d:\d\d$)/, '$1+'));
  return at ? slotName(at) : given;
}
