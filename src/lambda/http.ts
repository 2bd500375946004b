import { Logger } from '@aws-lambda-powertools/logger';
import { createApp, healthOf, secured } from '../http/app.ts';
import type { Health } from '../http/health.ts';
import { Problem } from '../http/problem.ts';
import { Refusals } from '../http/refusals.ts';
import { invoker } from '../operate/invoke.ts';
import type { Target } from '../postgres/driver.ts';
import { patiently } from '../postgres/patience.ts';
import { Session } from '../postgres/session.ts';
import { readSettings, SettingsError, type Settings } from '../settings.ts';
import { jobsOf } from './invocation.ts';
import { reported } from './reported.ts';
import { incomingOf, lambdaAnswer, type Incoming, type LambdaAnswer } from './request.ts';
import type { Deployed } from './scheduled.ts';

/** How long a full or starting server is asked again, ms: API Gateway cuts at 30 s. */
const patienceMs = 2_000;

/** What Lambda calls for a request of API Gateway's HTTP or REST API, of a function URL or a load balancer. */
export type RequestHandler = (event: unknown) => Promise<LambdaAnswer>;

/**
 * The handler of the HTTP API and the page. The app is made for one request, as a session is; kept from one to the next
 * is only that a look at the database was had, and who showed wrong tokens.
 */
export function httpHandler({ registry }: Deployed): RequestHandler {
  const refusals = new Refusals();
  const healthAt = keptHealth();

  const appOf = (settings: Settings, { base, source }: Incoming) => {
    const { target, deployment, http, logLevel, retentionMs } = settings;
    return createApp({
      registry: jobsOf(registry, settings),
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
  };

  const answer = async (event: unknown): Promise<Response> => {
    try {
      const incoming = incomingOf(event);
      return await appOf(readSettings(), incoming).fetch(incoming.request);
    } catch (error) {
      if (error instanceof SettingsError) return secured(unfit(error));
      if (error instanceof Problem) return secured(refused(error));
      throw error;
    }
  };

  return reported(async (event: unknown) => lambdaAnswer(await answer(event), event));
}

function keptHealth(): (target: Target) => Health {
  let kept: { readonly of: string; readonly health: Health } | undefined;
  return (target) => {
    const of = JSON.stringify(target);
    if (kept?.of !== of) kept = { of, health: healthOf(async () => Session.open(target)) };
    return kept.health;
  };
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
