import { Logger } from '@aws-lambda-powertools/logger';
import { createApp, healthOf, secured } from '../src/http/app.ts';
import { incomingOf, lambdaAnswer, type Incoming, type LambdaAnswer } from '../src/http/event.ts';
import type { Health } from '../src/http/health.ts';
import { Problem } from '../src/http/problem.ts';
import { Refusals } from '../src/http/refusals.ts';
import { invoker } from '../src/invoke.ts';
import { patiently } from '../src/postgres/patience.ts';
import type { Target } from '../src/postgres/driver.ts';
import { Session } from '../src/postgres/session.ts';
import { readSettings, SettingsError, type Settings } from '../src/settings.ts';
import { jobsOf } from './shared/jobs.ts';
import { reported } from './shared/reported.ts';

/** How long a full or starting server is asked again, ms: API Gateway cuts at 30 s. */
const patienceMs = 2_000;

/** The HTTP entry. Like a session, the app is made for one request; see below for what of it is left for the next. */
export const handler = reported(async (event: unknown): Promise<LambdaAnswer> =>
  lambdaAnswer(await answer(event), event),
);

async function answer(event: unknown): Promise<Response> {
  try {
    const incoming = incomingOf(event);
    return await appOf(readSettings(), incoming).fetch(incoming.request);
  } catch (error) {
    if (error instanceof SettingsError) return secured(unfit(error));
    if (error instanceof Problem) return secured(refused(error));
    throw error;
  }
}

function appOf(settings: Settings, { base, source }: Incoming) {
  const { target, deployment, http, logLevel, retentionMs } = settings;
  return createApp({
    registry: jobsOf(settings),
    deployment,
    base,
    readTokens: http.readTokens,
    runTokens: http.runTokens,
    openSession: async () => patiently(() => Session.open(target), patienceMs),
    startRun: invoker(http),
    now: () => new Date(),
    keepKeysMs: retentionMs,
    logger: new Logger({ serviceName: 'cronce', logLevel }),
    sourceOf: () => source,
    health: healthAt(target),
    refusals,
  });
}

// What is kept from one request of this process to the next: that a look was had, and who showed wrong tokens.
const refusals = new Refusals();
let health: { readonly of: string; readonly health: Health } | undefined;

function healthAt(target: Target): Health {
  const of = JSON.stringify(target);
  if (health?.of !== of) health = { of, health: healthOf(async () => Session.open(target)) };
  return health.health;
}

/** What is wrong, and its cure, is for the log: whoever asks has shown no token yet. */
function unfit(error: SettingsError): Response {
  new Logger({ serviceName: 'cronce' }).error(error.message, { error });
  return new Problem(
    503,
    'settings',
    'The settings of this deployment can’t be used; the log says why.',
  ).response();
}

function refused(problem: Problem): Response {
  new Logger({ serviceName: 'cronce' }).warn('an event was refused', { code: problem.code });
  return problem.response();
}
