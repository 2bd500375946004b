/**
 * Makes the workers of serverless-offline end like Lambda's sandboxes. Three things of serverless-offline 14.8 would
 * otherwise end or block the whole local set-up:
 *
 * - An error thrown by an invocation that nobody waits for is a rejection that nobody handles, and ends the process.
 * - So does an error that a handler lets escape (from a timer, say), as its worker's 'error' goes unheard.
 * - A worker that has ended (process.exit, a timeout) stays in the pool: its invocation is never answered, nor is
 *   any later one that the pool gives to it.
 */
import { syncBuiltinESMExports } from 'node:module';
import workerThreads, {
  MessageChannel,
  MessagePort,
  Worker,
  type Transferable,
  type WorkerOptions,
} from 'node:worker_threads';

/** A worker that is started anew, once it has ended and is needed again. */
class Sandbox extends Worker {
  readonly #again: () => Worker;
  /** Undefined once it has ended. */
  #current: Worker | undefined;

  constructor(file: string | URL, options?: WorkerOptions) {
    super(file, options);
    this.#again = () => new Worker(file, options);
    this.#follow(this);
  }

  override postMessage(message: unknown, transfer: readonly Transferable[] = []): void {
    this.#current ??= this.#follow(this.#again());
    const worker = this.#current;
    const send = worker === this ? super.postMessage.bind(this) : worker.postMessage.bind(worker);
    if (!isInvocation(message)) {
      send(message, transfer);
      return;
    }
    const port = portThatAnswers(message.port);
    send({ ...message, port }, [port]);
  }

  override async terminate(): Promise<number> {
    const worker = this.#current;
    return worker === undefined || worker === this ? super.terminate() : worker.terminate();
  }

  #follow(worker: Worker): Worker {
    this.#current = worker;
    worker.on('error', (error) => console.error('A handler let an error escape:', error));
    worker.once('exit', () => {
      if (this.#current === worker) this.#current = undefined;
    });
    return worker;
  }
}

interface Invocation {
  readonly port: MessagePort;
}

function isInvocation(message: unknown): message is Invocation {
  return (
    typeof message === 'object' &&
    message !== null &&
    'port' in message &&
    message.port instanceof MessagePort
  );
}

/** For the worker: passes on its answer or, where its end closes the port without one, an error. */
function portThatAnswers(caller: MessagePort): MessagePort {
  const { port1: ours, port2: theirs } = new MessageChannel();
  let answer: unknown = new Error('Runtime.ExitError: the sandbox ended before it answered');
  ours.on('message', (message: unknown) => {
    answer = message;
    ours.close();
  });
  ours.on('close', () => {
    caller.postMessage(answer);
    caller.close();
  });
  return theirs;
}

/** Those of this process, from now on. */
export function isolateSandboxes(): void {
  workerThreads.Worker = Sandbox;
  syncBuiltinESMExports();
  process.on('unhandledRejection', (reason) => console.error('An invocation failed:', reason));
}
