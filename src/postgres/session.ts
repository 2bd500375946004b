import { setImmediate as nextTurn, setTimeout as delay } from 'node:timers/promises';
import type { QueryConfig, QueryResult } from 'pg';
import {
  breakSocket,
  makeClient,
  queryAlone,
  queryAny,
  type DriverClient,
  type DriverName,
  type Target,
} from './driver.ts';
import {
  CannotConnect,
  ConnectionLost,
  isServerError,
  PostgresError,
  typed,
  UnsendableQuery,
} from './errors.ts';
import { moment, type Moment } from './moment.ts';

/**
 * One short-lived connection, made inside an invocation and never shared between two.
 *
 * One message is under way at a time, so no heartbeat ever waits behind another, and the moment at which the
 * last *answered* message was sent is known: the server heard of us no earlier than that.
 */
export class Session {
  readonly #client: DriverClient;
  readonly #driver: DriverName;
  readonly #lost = new AbortController();
  readonly #loss: Promise<never>;
  #tail: Promise<unknown> = Promise.resolve();
  #answered: Moment;
  #underWaySince: Moment | null = null;
  #closing = false;

  private constructor(client: DriverClient, driver: DriverName, connectedAt: Moment) {
    this.#client = client;
    this.#driver = driver;
    this.#answered = connectedAt;
    this.#loss = new Promise((_, reject) => {
      this.#lost.signal.addEventListener('abort', () => {
        reject(this.#lost.signal.reason as PostgresError);
      });
    });
    this.#loss.catch(() => undefined);
    client.on('end', () => {
      this.destroy(new ConnectionLost('the server closed the connection'));
    });
  }

  /** @throws CannotConnect, AccessRefused; with the neon driver a wrong password shows at the first message. */
  static async open(target: Target): Promise<Session> {
    const client = await makeClient(target);
    let failed: (error: unknown) => void = () => undefined;
    const failure = new Promise<never>((_, reject) => (failed = reject));
    failure.catch(() => undefined);
    // Without a listener from before connect on, a broken socket ends the process.
    client.on('error', (error) => {
      failed(error);
    });
    const timer = setTimeout(() => {
      failed(new ConnectionLost(`no answer within ${target.connectTimeoutMs} ms`));
    }, target.connectTimeoutMs);
    const startedAt = moment();
    try {
      await Promise.race([client.connect(), failure]);
    } catch (error) {
      breakSocket(client);
      throw cannotConnect(error);
    } finally {
      clearTimeout(timer);
    }
    const session = new Session(client, target.driver, startedAt);
    failure.catch((error: unknown) => {
      session.destroy(typed(error));
    });
    return session;
  }

  /** Aborts, with a `PostgresError` as its reason, once the connection is gone or given up. */
  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  /** When the last message that the server answered was sent. */
  get answeredMessageSentAt(): Moment {
    return this.#answered;
  }

  /** Since when a message has been waiting for its answer; null while none is. */
  get underWaySince(): Moment | null {
    return this.#underWaySince;
  }

  /**
   * Sends statements as one simple-protocol message: one round trip, an answer a statement.
   * No parameters here: put values in by `literal`.
   * @param timeoutMs gives the session up if no answer has come by then.
   */
  async send(sql: string, timeoutMs?: number): Promise<readonly QueryResult[]> {
    const results = await this.#exchange(() => this.#client.query(sql), timeoutMs);
    return Array.isArray(results) ? results : [results];
  }

  /** One statement in node-postgres' own form; `alone` has the server refuse a text of several. */
  async query(query: QueryConfig | string, values?: unknown[], { alone = false } = {}): Promise<QueryResult> {
    const result = await this.#exchange(() =>
      alone
        ? queryAlone(this.#client, this.#driver, query)
        : queryAny(this.#client, this.#driver, query, values),
    );
    return Array.isArray(result) ? (result.at(-1) as QueryResult) : result;
  }

  literal(text: string): string {
    return this.#client.escapeLiteral(text);
  }

  /** Gives the connection up at once. The server ends the transaction when it notices, or by the lease. */
  destroy(reason: PostgresError): void {
    if (this.#lost.signal.aborted) return;
    this.#lost.abort(reason);
    breakSocket(this.#client);
  }

  /** Sends a last message, and says goodbye behind it. */
  async farewell(sql: string): Promise<void> {
    await this.send(sql, 2_000).catch(() => undefined);
    await this.close();
  }

  /** Says goodbye, for at most a quarter of a second. */
  async close(): Promise<void> {
    if (this.#lost.signal.aborted || this.#closing) return;
    this.#closing = true;
    const tooLong = new AbortController();
    const ended = this.#client.end().catch(() => undefined);
    await Promise.race([ended, delay(250, undefined, { signal: tooLong.signal }).catch(() => undefined)]);
    tooLong.abort();
    this.destroy(new ConnectionLost('the session was closed'));
  }

  async #exchange<T>(message: () => Promise<T>, timeoutMs?: number): Promise<T> {
    const turn = this.#tail.then(() => this.#deliver(message, timeoutMs));
    this.#tail = turn.catch(() => undefined);
    return turn;
  }

  async #deliver<T>(message: () => Promise<T>, timeoutMs: number | undefined): Promise<T> {
    this.#lost.signal.throwIfAborted();
    const sentAt = moment();
    this.#underWaySince = sentAt;
    const timer =
      timeoutMs === undefined
        ? undefined
        : setTimeout(() => {
            this.destroy(new ConnectionLost(`no answer within ${timeoutMs} ms`));
          }, timeoutMs);
    try {
      const answer = await this.#orLost(message());
      this.#answered = sentAt;
      return answer;
    } catch (thrown) {
      throw await this.#understood(thrown, sentAt);
    } finally {
      clearTimeout(timer);
      this.#underWaySince = null;
    }
  }

  /** An error that came over a living connection is an answer too. */
  async #understood(thrown: unknown, sentAt: Moment): Promise<PostgresError> {
    if (this.#lost.signal.aborted) return typed(this.#lost.signal.reason);
    const error = (await this.#isUnsendable(thrown))
      ? new UnsendableQuery(String(thrown), { cause: thrown })
      : typed(thrown);
    if (error instanceof ConnectionLost) this.destroy(error);
    else if (!(error instanceof UnsendableQuery)) this.#answered = sentAt; // which the server never heard of
    return error;
  }

  /** The driver itself refused a parameter (a circular object, say). A broken socket shows within the same turn. */
  async #isUnsendable(thrown: unknown): Promise<boolean> {
    if (!(thrown instanceof Error) || thrown instanceof PostgresError || isServerError(thrown)) return false;
    await nextTurn();
    return !this.#lost.signal.aborted;
  }

  /** The answer, or the loss of the connection: under a partition the driver alone would wait for ever. */
  async #orLost<T>(answer: Promise<T>): Promise<T> {
    answer.catch(() => undefined); // when the connection goes first, its own rejection comes to nobody
    return Promise.race([answer, this.#loss]);
  }
}

/** Whatever kept us from a session, said as that; a refusal that the server explained stays what it is. */
function cannotConnect(thrown: unknown): PostgresError {
  const error = typed(thrown);
  if (!(error instanceof ConnectionLost)) return error;
  const cure = 'check host and port in DATABASE_URL, and that the server is up and reachable';
  return new CannotConnect(`cannot connect to PostgreSQL (${error.message}): ${cure}`, {
    code: error.code,
    cause: thrown,
  });
}
