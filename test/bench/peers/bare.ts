/** The bare recipe on PostgreSQL, by a session's lock or a transaction's; see ../bare.ts. It has no documentation but the manual's. */
import { createHash } from 'node:crypto';
import pg from 'pg';
import type { Peer, Work } from './peer.ts';

/** Nothing of the slot: a lock knows who is inside, and not who was. */
function keyOf(job: string): string {
  return createHash('sha256').update(job).digest().readBigInt64BE(0).toString();
}

async function connected<T>(url: string, use: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.end();
  }
}

async function tries(client: pg.Client, sql: string): Promise<boolean> {
  // Several statements answer with a list.
  const results = [await client.query<{ got: boolean }>(sql)].flat();
  return results.at(-1)?.rows[0]?.got === true;
}

function recipe(lock: (key: string) => string, unlock: (key: string) => string): Peer['start'] {
  return async ({ postgres }, _jobs, work: Work) => ({
    deliver: async (job, slot) =>
      connected(postgres, async (client) => {
        if (!(await tries(client, lock(keyOf(job))))) return false;
        await work(job, slot);
        await client.query(unlock(keyOf(job)));
        return true;
      }),
    stop: async () => Promise.resolve(),
  });
}

const common = { on: 'PostgreSQL', resident: false, takenOverBy: 'a delivery' } as const;

export const bare: Peer = {
  ...common,
  name: 'bare recipe',
  setUp: 'connect, `pg_try_advisory_lock(job)`, work, unlock, `end()`',
  start: recipe(
    (key) => `SELECT pg_try_advisory_lock(${key}) AS got`,
    (key) => `SELECT pg_advisory_unlock(${key})`,
  ),
};

export const bareTransaction: Peer = {
  ...common,
  name: 'bare recipe by a transaction’s lock',
  setUp: 'connect, `BEGIN; SELECT pg_try_advisory_xact_lock(job)` in one message, work, `COMMIT`, `end()`',
  start: recipe(
    (key) => `BEGIN; SELECT pg_try_advisory_xact_lock(${key}) AS got`,
    () => 'COMMIT',
  ),
};
