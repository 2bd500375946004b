/** Looks on from outside, by a session of its own, and says when a lock came free. */
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { setPlain } from '../support/bed.ts';

/** How often it looks, ms. */
const lookMs = 5;

export interface Freed {
  /** When it was last seen held, by the server's clock; 0 if never. Until then it was certainly not free. */
  readonly heldAt: number;
  /** When it was first seen free: it had come free by then. */
  readonly freeAt: number;
}

interface Waiter {
  readonly key: string;
  heldAt: number;
  readonly free: (freed: Freed) => void;
}

interface Look extends Record<string, unknown> {
  readonly before: number;
  readonly after: number;
  readonly held: readonly string[];
}

export class LockWatch {
  readonly #url: string;
  #client: pg.Client | undefined;
  #waiters: Waiter[] = [];
  #looking: Promise<void> | undefined;
  #closed = false;

  constructor(url: string) {
    this.#url = url;
  }

  /** Resolves once nobody holds the lock; never, if somebody always does. */
  async free(key: bigint): Promise<Freed> {
    return new Promise((resolve) => {
      this.#waiters.push({ key: key.toString(), heldAt: 0, free: resolve });
      this.#looking ??= this.#look().finally(() => (this.#looking = undefined));
    });
  }

  /** The keys of all advisory locks in this database. */
  async held(): Promise<readonly string[]> {
    return (await this.#ask()).held;
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#looking;
    await this.#client?.end();
  }

  async #look(): Promise<void> {
    while (this.#waiters.length > 0 && !this.#closed) {
      const look = await this.#ask().catch(() => undefined);
      if (look) this.#tell(look);
      await delay(lookMs);
    }
  }

  #tell({ before, after, held }: Look): void {
    for (const waiter of this.#waiters)
      if (held.includes(waiter.key)) waiter.heldAt = before;
      else waiter.free({ heldAt: waiter.heldAt, freeAt: after });
    this.#waiters = this.#waiters.filter(({ key }) => held.includes(key));
  }

  async #ask(): Promise<Look> {
    this.#client ??= await this.#connect();
    const { rows } = await this.#client.query<Look>(
      `SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS before, ARRAY(
         SELECT ((classid::bigint << 32) | objid::bigint)::text FROM pg_locks
         WHERE locktype = 'advisory' AND granted AND objsubid = 1
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS held,
         (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS after`,
    );
    return rows[0] as Look;
  }

  async #connect(): Promise<pg.Client> {
    const client = new pg.Client({
      connectionString: this.#url,
      application_name: 'faults: watch',
      ssl: false,
    });
    // A restart of the server ends it; the next look makes another.
    client.on('error', () => (this.#client = undefined));
    await client.connect();
    await setPlain(client);
    return client;
  }
}
