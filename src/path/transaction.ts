import { EventEmitter } from 'node:events';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Transaction } from '../job.ts';
import type { PoolClient, QueryConfig, QueryResult } from '../postgres/driver.ts';
import { isServerError } from '../postgres/errors.ts';
import type { Session } from '../postgres/session.ts';
import { beginPrefix, ForbiddenStatement, read, tracesOf, unbegun, type Statement } from './statement.ts';

/**
 * This module's secret: how the lock's session looks like a pool to a job, and what of it must not last.
 *
 * It is a pool of one connection that can be lent out several times at once. A BEGIN is a savepoint, which belongs
 * to the handle that sent it (`tx` itself, or what `connect()` answered): until its COMMIT or ROLLBACK the statements
 * of other handles wait, as they would for a pool's only connection, so that no transaction takes another's writes
 * along when it rolls back. A BEGIN on `tx` itself is everyone's.
 */

/** A transaction was used after its work had ended or was told to stop. Nothing was sent. */
export class WorkIsOver extends Error {
  override readonly name = 'WorkIsOver';
}

/** Work returned while a transaction that it had begun in `tx` was open: half of it must not be committed. */
export class TransactionLeftOpen extends Error {
  override readonly name = 'TransactionLeftOpen';
}

/** How long others wait for an open transaction that sends nothing: it may be waiting for them, and would for ever. */
const patienceMs = 5_000;

/** The longest that undoing may take, ms. */
const undoMs = 10_000;

interface Savepoint {
  readonly name: string;
  /** Of one that stands for a BEGIN. */
  readonly owner?: object;
}

interface Request {
  readonly handle: object;
  readonly config: QueryConfig;
  readonly statement: Statement;
  readonly resolve: (result: QueryResult) => void;
  readonly reject: (error: unknown) => void;
}

type Callback = (error: Error | undefined, result?: QueryResult) => void;

/** What a job is given as `tx`. */
export class WorkTransaction extends EventEmitter implements Transaction {
  /** Drizzle knows a pool, whose transactions each take a connection, by its class's name; a bundler changes that. */
  static override readonly name: string = 'PoolOfOne';

  readonly totalCount = 1;
  readonly expiredCount = 0;
  readonly ending = false;
  readonly ended = false;
  readonly options = {
    max: 1,
    maxUses: Infinity,
    allowExitOnIdle: false,
    maxLifetimeSeconds: 0,
    idleTimeoutMillis: null,
  };

  readonly #session: Session;
  readonly #refusal: () => Error | undefined;
  readonly #waiting: Request[] = [];
  readonly #unanswered = new Set<Promise<QueryResult>>();
  readonly #savepoints: Savepoint[] = [];
  readonly #left: Left = { locks: false, temporary: false, settings: new Set() };
  #underWay = false;
  #begun = 0;
  #patience: NodeJS.Timeout | undefined;
  #failure: { readonly error: unknown } | undefined;

  constructor(session: Session, refusal: () => Error | undefined) {
    super();
    this.setMaxListeners(0);
    this.#session = session;
    this.#refusal = refusal;
  }

  get idleCount(): number {
    return this.#underWay ? 0 : 1;
  }

  get waitingCount(): number {
    return this.#waiting.length;
  }

  query = asPg((query, values) => this.#ask(this, query, values));

  connect(): Promise<PoolClient>;
  connect(callback: (error: undefined, client: PoolClient, done: () => void) => void): void;
  connect(
    callback?: (error: undefined, client: PoolClient, done: () => void) => void,
  ): Promise<PoolClient> | undefined {
    // The rest of pg's client is the wire's, and not for a job: absent, whatever the type says.
    const client: Lent = new Lent(
      async (query, values) => this.#ask(client, query, values),
      (text) => this.#session.literal(text),
    );
    const lent = client as unknown as PoolClient;
    if (!callback) return Promise.resolve(lent);
    callback(undefined, lent, nothing);
    return undefined;
  }

  end(): Promise<void>;
  end(callback: () => void): void;
  async end(callback?: () => void): Promise<void> {
    callback?.();
  }

  /**
   * After the work's function has returned: waits for statements that it didn't wait for.
   * @throws what keeps its writes from being committed: an SQL error that no rollback has undone, an open transaction
   */
  async settle(): Promise<void> {
    do {
      await Promise.allSettled(this.#unanswered);
      await nextTurn(); // whoever got that answer may go on with the next statement
    } while (this.#unanswered.size > 0);
    if (this.#failure) throw this.#failure.error;
    if (this.#innermost())
      throw new TransactionLeftOpen(
        'the work returned while a transaction that it had begun in tx was open: await it, or COMMIT it',
      );
  }

  /**
   * Undoes what would last longer than the transaction, on a connection that a pooler may hand to others: session
   * locks, settings, temporary tables. Nothing is sent where no statement looks as if it had left any.
   * @param kept whether the work's writes will be committed; false rolls them back, as settings and tables then are
   * @returns what there was, in words
   */
  async undoLeftovers({ kept, leaseMs }: { kept: boolean; leaseMs: number }): Promise<readonly string[]> {
    const { locks, temporary, settings } = this.#left;
    if (this.#underWay || this.#session.lost.aborted) return [];
    if (!locks && (!kept || (!temporary && settings.size === 0))) return [];
    const results = await this.#session.send(this.#undoSql(kept, leaseMs), undoMs);
    const row = results.reduce((all, { rows }) => ({ ...all, ...(rows[0] as object) }), {}) as Found;
    const locked = row.before === row.after ? [] : ['advisory locks of the session (undone)'];
    return kept ? [...locked, ...keptInWords(row, this.#left)] : locked;
  }

  #undoSql(kept: boolean, leaseMs: number): string {
    const { temporary, settings } = this.#left;
    const names = [...settings].filter((name) => name !== null);
    const list = `ARRAY[${names.map((name) => this.#session.literal(name)).join(', ')}]::text[]`;
    return [
      ...(kept ? [] : ['ROLLBACK TO SAVEPOINT work']),
      'SET LOCAL statement_timeout = 0; SET LOCAL search_path = pg_catalog',
      advisoryLocks('before'),
      'SELECT pg_advisory_unlock_all()',
      advisoryLocks('after'),
      `SELECT string_agg(name, ', ') AS settings FROM unnest(${list}) AS name WHERE current_setting(name, true) IS NOT NULL`,
      ...(kept && temporary ? ['DISCARD TEMP'] : []),
      ...(kept && names.length > 0 ? [resetSql(list, leaseMs)] : []),
    ].join('; ');
  }

  async #ask(handle: object, query: unknown, values: unknown): Promise<QueryResult> {
    const config = plainQuery(query, values);
    const statement = read(config.text);
    const refused = this.#refusal();
    if (refused) throw refused;
    const answer = new Promise<QueryResult>((resolve, reject) => {
      this.#waiting.push({ handle, config, statement, resolve, reject });
    });
    this.#unanswered.add(answer);
    this.#next();
    return answer.finally(() => this.#unanswered.delete(answer));
  }

  #next(): void {
    if (this.#underWay) return;
    clearTimeout(this.#patience);
    const index = this.#waiting.findIndex(({ handle }) => this.#mayGo(handle));
    const [request] = index < 0 ? [] : this.#waiting.splice(index, 1);
    if (request) void this.#perform(request);
    else if (this.#waiting.length > 0)
      this.#patience = setTimeout(() => {
        this.#turnAway();
      }, patienceMs);
  }

  async #perform(request: Request): Promise<void> {
    this.#underWay = true;
    try {
      const refused = this.#refusal();
      if (refused) throw refused;
      request.resolve(await this.#carryOut(request));
    } catch (error) {
      request.reject(error);
    } finally {
      this.#underWay = false;
      this.#next();
    }
  }

  async #carryOut({ handle, config, statement }: Request): Promise<QueryResult> {
    switch (statement.kind) {
      case 'begin':
        return this.#begin(handle);
      case 'commit':
      case 'rollback':
        return this.#end(handle, statement.kind);
      case 'savepoint':
        return this.#savepoint(config, statement.name);
      case 'release':
      case 'rollback to':
        return this.#backTo(config, statement.kind, statement.name);
      case 'other':
        return this.#send(config);
    }
  }

  async #begin(owner: object): Promise<QueryResult> {
    const name = `${beginPrefix}${++this.#begun}`;
    const result = await this.#send({ text: `SAVEPOINT ${name}` });
    this.#savepoints.push({ name, owner });
    return { ...result, command: 'BEGIN' };
  }

  /** A COMMIT after an SQL error is refused by the server, and leaves the transaction to be rolled back. */
  async #end(handle: object, kind: 'commit' | 'rollback'): Promise<QueryResult> {
    const begun = this.#innermost();
    if (begun?.owner !== handle) throw unbegun(kind);
    const result = kind === 'commit' ? undefined : await this.#send({ text: `ROLLBACK TO ${begun.name}` });
    if (kind === 'rollback') this.#failure = undefined;
    const released = await this.#send({ text: `RELEASE SAVEPOINT ${begun.name}` });
    this.#savepoints.length = this.#savepoints.indexOf(begun);
    return result ?? { ...released, command: 'COMMIT' };
  }

  async #savepoint(config: QueryConfig, name: string): Promise<QueryResult> {
    const result = await this.#send(config);
    this.#savepoints.push({ name });
    return result;
  }

  async #backTo(config: QueryConfig, kind: 'release' | 'rollback to', name: string): Promise<QueryResult> {
    const begun = this.#innermost();
    const index = this.#savepoints.findLastIndex((each) => each.name === name && each.owner === undefined);
    if (index < (begun ? this.#savepoints.indexOf(begun) : 0))
      throw new ForbiddenStatement(`this transaction has no savepoint ${name}`);
    const result = await this.#send(config);
    this.#savepoints.length = kind === 'release' ? index : index + 1;
    if (kind === 'rollback to') this.#failure = undefined;
    return result;
  }

  async #send(config: QueryConfig): Promise<QueryResult> {
    this.#note(config);
    try {
      return await this.#session.query(config, undefined, {
        alone: mightBeSeveral(config),
        theirs: true,
      });
    } catch (error) {
      if (isServerError(error)) this.#failure ??= { error };
      throw error;
    }
  }

  #note({ text, values }: QueryConfig): void {
    const traces = tracesOf(text, (values ?? []) as unknown[]);
    this.#left.locks ||= traces.locks;
    this.#left.temporary ||= traces.temporary;
    for (const name of traces.settings) this.#left.settings.add(name);
  }

  #innermost(): Savepoint | undefined {
    return this.#savepoints.findLast(({ owner }) => owner !== undefined);
  }

  #mayGo(handle: object): boolean {
    const owner = this.#innermost()?.owner;
    return owner === undefined || owner === this || owner === handle;
  }

  #turnAway(): void {
    const refused = new ForbiddenStatement(
      `a transaction begun in tx has sent nothing for ${patienceMs} ms while this statement waits for its end: ` +
        'inside a transaction use the handle that it gives you, and not tx or the builder around it',
    );
    for (const { reject } of this.#waiting.splice(0)) reject(this.#refusal() ?? refused);
  }
}

/** What `connect` answers: the same session, and a transaction of one's own on it. */
class Lent extends EventEmitter {
  readonly query: ReturnType<typeof asPg>;
  readonly escapeLiteral: (text: string) => string;
  readonly connect = async (): Promise<void> => undefined;
  readonly end = async (): Promise<void> => undefined;
  readonly release = nothing;

  constructor(ask: Ask, escapeLiteral: (text: string) => string) {
    super();
    this.query = asPg(ask);
    this.escapeLiteral = escapeLiteral;
  }

  escapeIdentifier(name: string): string {
    return `"${name.replaceAll('"', '""')}"`;
  }
}

function nothing(): void {
  // The connection is the run's: nobody else gives it back, or closes it.
}

type Ask = (query: unknown, values: unknown) => Promise<QueryResult>;

/** node-postgres' ways to call it: for a promise, or with a callback. */
function asPg(ask: Ask): Transaction['query'] {
  const query = (text: unknown, second?: unknown, third?: unknown): Promise<QueryResult> | undefined => {
    const callback = [second, third].find((argument) => typeof argument === 'function') as
      Callback | undefined;
    const answer = ask(text, typeof second === 'function' ? undefined : second);
    if (!callback) return answer;
    void answer.then((result) => callback(undefined, result), callback);
    return undefined;
  };
  return query as Transaction['query'];
}

/**
 * Only what a statement is: without a name, by which a prepared statement would stay on a pooled connection and
 * collide with the next client's; and read once, so that what was looked at is what is sent.
 */
function plainQuery(query: unknown, values: unknown): QueryConfig {
  if (typeof query === 'string') return withValues({ text: query }, values);
  const config = query as Partial<QueryConfig> & { submit?: unknown; rowMode?: unknown };
  if (typeof query !== 'object' || query === null || typeof config.submit === 'function')
    throw new ForbiddenStatement(
      'tx takes a text or { text, values }: with a cursor or stream, a result that nobody reads stalls the heartbeat',
    );
  const { text, types, rowMode } = config;
  const plain = {
    text: String(text),
    ...(types === undefined ? {} : { types }),
    ...(rowMode === undefined ? {} : { rowMode }),
  };
  return withValues(plain, values ?? config.values);
}

function withValues(config: QueryConfig, values: unknown): QueryConfig {
  return Array.isArray(values) && values.length > 0
    ? { ...config, values: [...(values as unknown[])] }
    : config;
}

/** With parameters the drivers send one statement anyway. */
function mightBeSeveral({ text, values }: QueryConfig): boolean {
  return values === undefined && text.trim().replace(/;$/, '').includes(';');
}

interface Left {
  locks: boolean;
  temporary: boolean;
  /** By name; null for one whose name can't be told. */
  readonly settings: Set<string | null>;
}

interface Found {
  readonly before: number;
  readonly after: number;
  readonly settings: string | null;
}

/** What a commit would have kept. */
function keptInWords({ settings: found }: Found, { temporary, settings }: Left): string[] {
  return [
    ...(temporary ? ['temporary tables (undone)'] : []),
    ...(found === null ? [] : [`settings of the session: ${found} (undone)`]),
    ...(settings.has(null) ? ['a setting of the session whose name can’t be told (it stays)'] : []),
  ];
}

function advisoryLocks(as: string): string {
  return `SELECT count(*)::int AS ${as} FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`;
}

/** One that was never set is no setting, and a role may not reset each; the lease must stand until the end. */
function resetSql(list: string, leaseMs: number): string {
  return `DO $cronce$
    DECLARE setting text;
    BEGIN
      FOREACH setting IN ARRAY ${list} LOOP
        CONTINUE WHEN current_setting(setting, true) IS NULL;
        EXECUTE 'RESET ' || (SELECT string_agg(quote_ident(part), '.') FROM unnest(string_to_array(setting, '.')) AS part);
      END LOOP;
      PERFORM set_config('idle_in_transaction_session_timeout', '${leaseMs}', true);
    END $cronce$`;
}
