/* eslint-disable @typescript-eslint/no-deprecated -- the package that shall succeed hono/aws-lambda is not published */
import { Logger } from '@aws-lambda-powertools/logger';
import { handle, type LambdaEvent } from 'hono/aws-lambda';
import { createApp } from '../src/http/app.ts';
import { invoker } from '../src/invoke.ts';
import { patiently } from '../src/postgres/patience.ts';
import { Session } from '../src/postgres/session.ts';
import { Problem } from '../src/http/problem.ts';
import { readSettings, SettingsError, type Settings } from '../src/settings.ts';
import { jobsOf } from './shared/jobs.ts';
import { reported } from './shared/reported.ts';

/** How long a full or starting server is asked again, ms: API Gateway cuts at 30 s. */
const patienceMs = 2_000;

/** Of an HTTP API or a function URL. */
export type HttpEvent = Extract<LambdaEvent, { readonly rawPath: string }>;

/** The HTTP entry. Like a session, the app is made for one request: nothing of it is left for the next. */
export const handler = reported(async (event: HttpEvent) => {
  try {
    return await handle(appOf(readSettings()))(understood(event));
  } catch (error) {
    if (error instanceof SettingsError) return unfit(error);
    throw error;
  }
});

function appOf(settings: Settings) {
  const { target, deployment, http, logLevel } = settings;
  return createApp({
    registry: jobsOf(settings),
    deployment,
    readTokens: http.readTokens,
    runTokens: http.runTokens,
    openSession: async () => patiently(() => Session.open(target), patienceMs),
    startRun: invoker({ functionPrefix: http.functionPrefix, endpoint: http.lambdaEndpoint }),
    now: () => new Date(),
    logger: new Logger({ serviceName: 'cronce', logLevel }),
  });
}

interface Unfit {
  readonly statusCode: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/** What is wrong, and its cure, is for the log: whoever asks has shown no token yet. */
async function unfit(error: SettingsError): Promise<Unfit> {
  new Logger({ serviceName: 'cronce' }).error(error.message, { error });
  const problem = new Problem(
    503,
    'settings',
    'The settings of this deployment can’t be used; the log says why.',
  );
  const response = problem.response();
  const headers = Object.fromEntries(response.headers);
  return { statusCode: problem.status, headers, body: await response.text() };
}

/** A body sent along with a GET means nothing, and a Request would not take it. */
function understood(event: HttpEvent): HttpEvent {
  const isRead = ['GET', 'HEAD'].includes(event.requestContext.http.method);
  return isRead ? { ...event, body: null } : event;
}
