import { setImmediate as nextTurn } from 'node:timers/promises';
import type { CustomTypesConfig, QueryConfig, QueryResult } from 'pg';
import {
  ask,
  breakSocket,
  makeClient,
  part,
  plain,
  sendWithPassword,
  watchAttempt,
  whyUnreached,
  type Attempt,
  type DriverClient,
  type Statement,
  type Target,
} from './driver.ts';
import {
  cannotConnect,
  CannotConnect,
  ConnectionLost,
  connectionLost,
  isFatal,
  isServerError,
  NoAnswer,
  type PostgresError,
  type ServerError,
  typed,
  UnsendableQuery,
} from './errors.ts';
import { elapsedMs, moment, type Moment } from './moment.ts';

/** How long a message of our own may wait for its answer where its sender names no limit, ms. */
export const messageLimitMs = 30_000;

/** How long a goodbye may take to leave the process, and then, with no statements before it, the server to hang up, ms. */
const partingMs = 250;

export interface QueryOptions {
  /** Has the server refuse a text of several statements. */
  readonly alone?: boolean;
  /**
   * A stranger's statement: what the server says against it is for him, in the driver's own error with all its
   * fields. It has no limit of time here, and its results are read as the driver reads them.
   */
  readonly theirs?: boolean;
  /** For a statement of our own, ms. */
  readonly timeoutMs?: number;
}

/**
 * One short-lived connection, made inside an invocation and never shared between two.
 *
 * One message is under way at a time, so no heartbeat ever waits behind another, and the moment at which the
 * last *answered* message was sent is known: the server heard of us no earlier than that. What the driver says
 * without having asked the server is no answer.
 *
 * The session lives until the server says FATAL or PANIC or the socket ends. Any other error is the statement's, even
 * one with the code of a broken connection: a function may raise whatever code it likes.
 */
export class Session {
  readonly #client: DriverClient;
  readonly #target: Target;
  readonly #attempt: () => Attempt;
  readonly #lost = new AbortController();
  readonly #loss: Promise<never>;
  #onFailure: (error: unknown) => void = () => undefined;
  #opening: NodeJS.Timeout | undefined;
  /** What connecting may take, ms; null once it has begun. */
  #toConnectMs: number | null;
  #connected = false;
  /** Whether the server has answered; with Neon's own hosts that is later. */
  #opened = false;
  #tail: Promise<unknown> = Promise.resolve();
  #answered: Moment;
  #underWaySince: Moment | null = null;
  /** What the server last said against a message. */
  #refused: unknown = null;
  /** The same, while it may yet turn out to have been the end of the session. */
  #lastWords: ServerError | null = null;
  /** Whether it has said that it is ready for the next message. */
  #ready = false;
  #straight = false;

  private constructor(client: DriverClient, target: Target, startedAt: Moment, toConnectMs: number) {
    this.#client = client;
    this.#target = target;
    this.#answered = startedAt;
    this.#toConnectMs = toConnectMs;
    this.#attempt = watchAttempt(client, target);
    this.#loss = new Promise((_, reject) => {
      this.#lost.signal.addEventListener('abort', () => {
        reject(this.#lost.signal.reason as PostgresError);
      });
    });
    this.#loss.catch(() => undefined);
    // Without a listener from before connect on, a broken socket ends the process.
    client.on('error', (error) => this.#onFailure(error));
    client.on('end', () => {
      // Before, connect() itself says why.
      if (this.#connected) this.#end(new ConnectionLost('the server closed the connection'));
    });
  }

  /**
   * All up to the server's first answer takes `connectTimeoutMs` at most, and `timeoutMs` at most. With Neon's own
   * hosts the password goes out with the first message, so a refusal shows there, and the limit holds on till then.
   * @param timeoutMs what is left of the invocation
   * @throws {CannotConnect | AccessRefused}
   */
  static async open(target: Target, limit: { readonly timeoutMs?: number } = {}): Promise<Session> {
    const session = await Session.atFirstMessage(target, limit);
    await session.#connect();
    return session;
  }

  /**
   * A session that connects with its first message, which leaves in one flight with the password: a round trip less. It is
   * that message which fails where no session can be had, by the limits and with the errors of `open`; then it was not
   * read, unless the connection went after the server had let us in and before we heard of it.
   * @throws {CannotConnect} where the URL can't be used
   */
  static async atFirstMessage(target: Target, { timeoutMs = Infinity } = {}): Promise<Session> {
    const limitMs = Math.max(0, Math.min(target.connectTimeoutMs, timeoutMs));
    const startedAt = moment();
    const client = await makeClient(target).catch((cause: unknown) => {
      const words = cause instanceof Error ? cause.message : 'the driver refuses it';
      throw new CannotConnect(`DATABASE_URL cannot be used (${words}): correct it`, { cause });
    });
    return new Session(client, target, startedAt, limitMs);
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
   * Sends statements of ours as one simple-protocol message: one round trip, an answer a statement. Answers are boolean,
   * number (of int2 and int4), what JSON says, or else text, whatever parsers the process has set.
   * No parameters here: put values in by `literal`.
   * @param timeoutMs gives the session up if no answer has come by then.
   */
  async send(sql: string, timeoutMs = messageLimitMs): Promise<readonly QueryResult[]> {
    const results = await this.#exchange({ query: sql, types: ownTypes }, { timeoutMs });
    return Array.isArray(results) ? results : [results];
  }

  /**
   * One statement in node-postgres' own form. Its name, if it has one, is left out: a prepared statement would outlive
   * the run on a pooler's connection.
   * @throws {PostgresError} for a statement of ours; for `theirs` the driver's own error, or `ConnectionLost`, or
   * `UnsendableQuery` with the reason as its cause
   */
  async query(
    query: QueryConfig | string,
    values?: readonly unknown[],
    options: QueryOptions = {},
  ): Promise<QueryResult> {
    const statement = { query, values, ...(options.theirs ? {} : { types: ownTypes }) };
    const timeoutMs = options.timeoutMs ?? (options.theirs ? undefined : messageLimitMs);
    const result = await this.#exchange(statement, { ...options, timeoutMs });
    return Array.isArray(result) ? (result.at(-1) as QueryResult) : result;
  }

  /**
   * Tells which backend has answered. Is it the one that the server named at the start, nobody stands between who could
   * lose what comes with a goodbye, and so a farewell waits for nothing.
   */
  answeredBy(backendPid: number): void {
    this.#straight = backendPid === this.#client.processID;
  }

  literal(text: string): string {
    return this.#client.escapeLiteral(text);
  }

  /** Gives the connection up at once. The server ends the transaction when it notices, or by the lease. */
  destroy(reason: PostgresError): void {
    if (this.#lost.signal.aborted) return;
    clearTimeout(this.#opening);
    this.#lost.abort(reason);
    breakSocket(this.#client);
  }

  /** Says goodbye without waiting for an answer. Never throws. */
  async close(): Promise<void> {
    await this.#part(null);
  }

  /**
   * Sends `sql` as one simple-protocol message and the goodbye, waits until both have left the process (for at most a
   * quarter of a second), and doesn't ask what became of them: the server runs the statements, then hangs up.
   * What is under way comes before it; what then waits for its answer is rejected. Never throws.
   */
  async farewell(sql: string): Promise<void> {
    await this.#part(sql);
  }

  async #connect(): Promise<void> {
    const limitMs = this.#toConnectMs ?? 0;
    this.#toConnectMs = null;
    const failure = new Promise<never>((_, reject) => (this.#onFailure = reject));
    const startedAt = this.#answered;
    this.#opening = setTimeout(() => this.#onFailure(new NoAnswer(limitMs)), limitMs - elapsedMs(startedAt));
    try {
      await Promise.race([this.#dial(), failure]);
    } catch (thrown) {
      failure.catch(() => undefined);
      breakSocket(this.#client);
      const cause = await whyUnreached(thrown, this.#client, this.#target);
      this.destroy(cannotConnect(cause, this.#attempt()));
      throw this.#lost.signal.reason;
    }
    this.#connected = true;
    this.#onFailure = (error) => this.#end(error);
    failure.catch((error: unknown) => this.#end(error));
  }

  /** The neon driver clears its listeners while it connects, so ours come after. */
  async #dial(): Promise<void> {
    const connected = this.#client.connect();
    connected.catch(() => undefined);
    const { connection } = this.#client;
    connection.on('errorMessage', (error: unknown) => {
      this.#refused = error;
      this.#ready = false;
    });
    connection.on('readyForQuery', () => {
      clearTimeout(this.#opening);
      this.#opened = this.#ready = true;
    });
    await connected;
  }

  #end(failure: unknown): void {
    const error = this.#lastWords ?? failure;
    this.destroy(this.#opened ? connectionLost(error) : cannotConnect(error, this.#attempt()));
  }

  async #part(sql: string | null): Promise<void> {
    if (this.#lost.signal.aborted) return;
    clearTimeout(this.#opening);
    this.#lost.abort(new ConnectionLost('the session was closed'));
    if (!this.#connected) {
      breakSocket(this.#client);
      return;
    }
    const tooLong = new AbortController();
    const over = new Promise<void>((resolve) => tooLong.signal.addEventListener('abort', () => resolve()));
    const timer = setTimeout(() => tooLong.abort(), partingMs);
    const words = { sql, straight: this.#straight };
    const parted = part(this.#client, this.#target.driver, words, tooLong.signal).catch(() => undefined);
    await Promise.race([parted, over]);
    clearTimeout(timer);
    if (tooLong.signal.aborted) breakSocket(this.#client);
    else this.#lookAfter(sql === null ? partingMs : messageLimitMs);
  }

  /** The server is the first to hang up, as what it does yet would else be broken off; in the end it is us. */
  #lookAfter(limitMs: number): void {
    const { stream } = this.#client.connection;
    const timer = setTimeout(() => breakSocket(this.#client), limitMs).unref();
    stream.once('close', () => clearTimeout(timer));
    stream.unref();
  }

  async #exchange(statement: Statement, options: Exchange): Promise<QueryResult | QueryResult[]> {
    const turn = this.#tail.then(() => this.#deliver(statement, options));
    this.#tail = turn.catch(() => undefined);
    return turn;
  }

  async #deliver(statement: Statement, options: Exchange): Promise<QueryResult | QueryResult[]> {
    this.#lost.signal.throwIfAborted();
    const config = readOnce(statement);
    const first = this.#toConnectMs === null ? null : await this.#connectWith(config, options);
    const timer = this.#limit(options.timeoutMs);
    this.#underWaySince = moment();
    try {
      if (first) return await this.#heard(first.answer, first.leftAt() ?? this.#answered, options);
      // With Neon's own hosts the first message follows the password, before the server has said anything.
      if (this.#opened) await this.#inStep();
      [this.#refused, this.#ready] = [null, false];
      const sentAt = moment();
      return await this.#heard(ask(this.#client, this.#target.driver, config, options), sentAt, options);
    } finally {
      clearTimeout(timer);
      this.#underWaySince = null;
    }
  }

  /** Its query waits in the driver's queue, and hears the answer, whoever has sent it. One with parameters has to wait. */
  async #connectWith(config: QueryConfig, options: Exchange): Promise<First | null> {
    if (config.values !== undefined || options.alone) {
      await this.#connect();
      return null;
    }
    const leftAt = sendWithPassword(this.#client, this.#target, config.text);
    const answer = ask(this.#client, this.#target.driver, config, options);
    answer.catch(() => undefined);
    await this.#connect();
    return { answer, leftAt };
  }

  async #heard(
    asked: Promise<QueryResult | QueryResult[]>,
    sentAt: Moment,
    options: Exchange,
  ): Promise<QueryResult | QueryResult[]> {
    try {
      const answer = await this.#orLost(asked);
      this.#answered = sentAt;
      return answer;
    } catch (thrown) {
      throw await this.#understood(thrown, sentAt, options);
    }
  }

  /** Until the server is ready for the next message, or is lost. */
  async #inStep(): Promise<void> {
    if (this.#ready) return;
    await this.#orLost(new Promise((resolve) => this.#client.connection.once('readyForQuery', resolve)));
  }

  #limit(timeoutMs: number | undefined): NodeJS.Timeout | undefined {
    if (timeoutMs === undefined) return undefined;
    return setTimeout(() => this.destroy(new NoAnswer(timeoutMs)), timeoutMs);
  }

  /** An error of the server's is an answer. It is told from the driver's by having come in a message of its own. */
  async #understood(thrown: unknown, sentAt: Moment, { alone, theirs }: Exchange): Promise<unknown> {
    if (this.#lost.signal.aborted) return this.#lost.signal.reason;
    if (thrown !== this.#refused || !isServerError(thrown)) return this.#unsendable(thrown);
    if (isFatal(thrown)) this.#end(thrown);
    else await this.#survived(thrown, alone);
    if (this.lost.aborted) return this.#lost.signal.reason;
    this.#answered = sentAt;
    return theirs ? thrown : typed(thrown);
  }

  /**
   * After an error the server is ready again, or the socket ends: of these one comes right behind it, in any language.
   * The neon driver leaves the Sync out where it ran a statement alone.
   */
  async #survived(error: ServerError, alone = false): Promise<void> {
    if (alone && this.#target.driver === 'neon') this.#client.connection.sync();
    this.#lastWords = error;
    await this.#inStep().catch(() => undefined);
    this.#lastWords = null;
  }

  /**
   * The driver itself refused a parameter (a circular object, say), or failed to read an answer. After the former the
   * neon driver forgets the Sync, which the server then waits for. A broken socket shows within the same turn.
   */
  async #unsendable(thrown: unknown): Promise<PostgresError> {
    if (!this.#ready && this.#target.driver === 'neon') this.#client.connection.sync();
    await nextTurn();
    if (this.#lost.signal.aborted) return this.#lost.signal.reason as PostgresError;
    return new UnsendableQuery(wordsOf(thrown), { cause: thrown });
  }

  /** The answer, or the loss of the connection: under a partition the driver alone would wait for ever. */
  async #orLost<T>(answer: Promise<T>): Promise<T> {
    answer.catch(() => undefined); // when the connection goes first, its own rejection comes to nobody
    return Promise.race([answer, this.#loss]);
  }
}

/** A first message, and when it left. */
interface First {
  readonly answer: Promise<QueryResult | QueryResult[]>;
  readonly leftAt: () => Moment | null;
}

interface Exchange extends Omit<QueryOptions, 'timeoutMs'> {
  readonly timeoutMs?: number | undefined;
}

/** @throws {UnsendableQuery} where it is no statement, or can't be read */
function readOnce(statement: Statement): QueryConfig {
  try {
    return plain(statement);
  } catch (cause) {
    throw new UnsendableQuery(wordsOf(cause), { cause });
  }
}

/** Whatever was thrown, and however it resists being read. */
function wordsOf(thrown: unknown): string {
  try {
    return String(thrown);
  } catch {
    return 'the statement could not be sent';
  }
}

const bool = 16;
const asNumber = [21, 23, 26, 700, 701];
const asJson = [114, 3802];

/** Results of ours are read by parsers of ours: those of the driver are the process's, and any code can change them. A time comes as text, in whatever DateStyle: ask for JSON. */
const ownTypes: CustomTypesConfig = {
  getTypeParser: (type: number) => (text: string) => {
    if (asNumber.includes(type)) return Number(text);
    if (asJson.includes(type)) return JSON.parse(text) as unknown;
    return type === bool ? text === 't' : text;
  },
};
