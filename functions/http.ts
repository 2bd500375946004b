/* eslint-disable @typescript-eslint/no-deprecated -- the package that shall succeed hono/aws-lambda is not published */
import { Logger } from '@aws-lambda-powertools/logger';
import { handle, type LambdaEvent } from 'hono/aws-lambda';
import { createApp } from '../src/http/app.ts';
import { invoker } from '../src/invoke.ts';
import { registry } from '../src/jobs/index.ts';
import { Session } from '../src/postgres/session.ts';
import { readSettings } from '../src/settings.ts';

/** Of an HTTP API or a function URL. */
export type HttpEvent = Extract<LambdaEvent, { readonly rawPath: string }>;

/** The HTTP entry. Like a session, the app is made for one request: nothing of it is left for the next. */
export async function handler(event: HttpEvent) {
  const { target, deployment, http, logLevel } = readSettings();
  const app = createApp({
    registry,
    deployment,
    readTokens: http.readTokens,
    runTokens: http.runTokens,
    openSession: async () => Session.open(target),
    startRun: invoker({ functionPrefix: http.functionPrefix, endpoint: http.lambdaEndpoint }),
    now: () => new Date(),
    logger: new Logger({ serviceName: 'cronce', logLevel }),
  });
  return handle(app)(understood(event));
}

/** A body sent along with a GET means nothing, and a Request would not take it. */
function understood(event: HttpEvent): HttpEvent {
  const isRead = ['GET', 'HEAD'].includes(event.requestContext.http.method);
  return isRead ? { ...event, body: null } : event;
}
