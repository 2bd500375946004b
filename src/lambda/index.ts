/** What a deployment's functions are made of: `export const handler = scheduledHandler({ registry })`, and so on. */
export { httpHandler, type RequestHandler } from './http.ts';
export type { Answer } from './invocation.ts';
export type { LambdaAnswer } from './request.ts';
export { scheduledHandler, type Deployed, type EventHandler } from './scheduled.ts';
export { sweepHandler } from './sweep.ts';
