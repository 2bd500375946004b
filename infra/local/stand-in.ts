/**
 * What serverless-offline leaves out of Lambda, put into its process before it starts:
 *
 * - An asynchronous invocation that fails comes again after one minute, then two, as often as its function says: the
 *   same event, under the same request id. Whoever invokes, the HTTP API and the sweep among them.
 * - An error is reported with its own name, where serverless-offline says `Error` of all.
 * - The functions that invoke others find the Lambda API of this emulator, and not AWS's.
 * - Sandboxes end alone (sandboxes.ts), and only this machine is served (guard.ts).
 *
 * It reaches into two of its classes, hence its version is pinned; where they are no longer what they were, it says so.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import { randomUUID } from 'node:crypto';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { visible } from '../terminal.ts';
import { guardServers } from './guard.ts';
import { retryAfterMs } from './retries.ts';
import { isolateSandboxes } from './sandboxes.ts';

export interface StandInOptions {
  readonly service: {
    readonly functions: Readonly<Record<string, EmulatedFunction>>;
    readonly custom?: Readonly<Record<string, { readonly lambdaPort?: number }>>;
  };
  /** Of the command line. */
  readonly options: { readonly lambdaPort?: number };
}

interface EmulatedFunction {
  readonly name: string;
  readonly maximumRetryAttempts?: number;
  readonly environment?: Record<string, string>;
}

/** The parts of serverless-offline that are changed. */
interface Controller {
  invoke: (
    this: Controller,
    name: string,
    type: string | null,
    event: unknown,
    clientContext: unknown,
  ) => Promise<Invoked>;
}

interface Context {
  setRequestId: (this: Context, id: string) => void;
}

interface Invoked {
  readonly Payload: unknown;
  readonly StatusCode: number;
  readonly UnhandledError?: boolean;
}

const defaultLambdaPort = 3_002;
/** Lambda's own default. */
const defaultRetries = 2;

export async function startStandIn({ service, options }: StandInOptions): Promise<void> {
  endWithParent();
  isolateSandboxes();
  guardServers();
  const port = options.lambdaPort ?? service.custom?.['serverless-offline']?.lambdaPort ?? defaultLambdaPort;
  const functions = Object.values(service.functions);
  for (const { environment } of functions) nameEndpoint(environment, port);
  await queueEvents(new Map(functions.map(({ name, maximumRetryAttempts }) => [name, maximumRetryAttempts])));
}

/** However `npm start` ends, nothing of it goes on. */
function endWithParent(): void {
  if (process.connected) process.on('disconnect', () => process.exit());
}

function nameEndpoint(environment: Record<string, string> | undefined, port: number): void {
  if (environment?.['CRONCE_FUNCTION_PREFIX'] !== undefined)
    environment['CRONCE_LAMBDA_ENDPOINT'] ??= `http://127.0.0.1:${port}`;
}

/** Given to each invocation of an event; those that have none get one of serverless-offline's. */
const requestId = new AsyncLocalStorage<string>();

async function queueEvents(retries: ReadonlyMap<string, number | undefined>): Promise<void> {
  const context = await prototypeOf<Context>('lambda/LambdaContext.js', 'setRequestId');
  const setRequestId = context.setRequestId;
  context.setRequestId = function (id) {
    setRequestId.call(this, requestId.getStore() ?? id);
  };
  const controller = await prototypeOf<Controller>(
    'lambda/routes/invocations/InvocationsController.js',
    'invoke',
  );
  const invoke = controller.invoke;
  controller.invoke = async function (name, type, event, clientContext) {
    const once = async () => named(await invoke.call(this, name, 'RequestResponse', event, clientContext));
    if (type !== 'Event' || !retries.has(name))
      return named(await invoke.call(this, name, type, event, clientContext));
    void requestId.run(randomUUID(), async () => untilDone(name, once, retries.get(name) ?? defaultRetries));
    return { Payload: '', StatusCode: 202 };
  };
}

async function prototypeOf<T>(path: string, method: keyof T): Promise<T> {
  const home = pathToFileURL(createRequire(import.meta.url).resolve('serverless-offline'));
  const { default: part } = (await import(new URL(path, home).href)) as { default: { prototype: T } };
  if (typeof part.prototype[method] === 'function') return part.prototype;
  throw new Error(
    `this version of serverless-offline has no ${path} as Cronce knows it; install the pinned one`,
  );
}

async function untilDone(name: string, once: () => Promise<Invoked>, retries: number): Promise<void> {
  const speed = Number(process.env['EMULATOR_SPEED'] ?? 1);
  for (const afterMs of [...retryAfterMs.slice(0, retries), null]) {
    const { UnhandledError, Payload } = await once();
    if (UnhandledError !== true) return;
    const then = afterMs === null ? 'not again' : `again in ${afterMs / speed / 1_000} s`;
    console.error(visible(`${name} failed, ${then}: ${JSON.stringify(Payload)}`));
    if (afterMs !== null) await sleep(afterMs / speed, undefined, { ref: false });
  }
}

/** The name of an error does not come across the thread; the head of its stack does. */
function named(invoked: Invoked): Invoked {
  const { UnhandledError, Payload } = invoked;
  if (UnhandledError !== true) return invoked;
  const { trace } = Payload as { readonly trace?: readonly string[] };
  const [errorType = 'Error'] = /^\w+(?:\.\w+)*(?=:|$)/.exec(trace?.[0] ?? '') ?? [];
  return { ...invoked, Payload: { ...(Payload as object), errorType } };
}
