/** The HTTP API and the page as a Hono app, for whoever serves it elsewhere than on Lambda. */
export { createApp, healthOf, type HttpOptions } from './app.ts';
export { Problem } from './problem.ts';
export { Refusals } from './refusals.ts';
