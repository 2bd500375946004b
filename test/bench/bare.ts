/**
 * The bare recipe, as a page on advisory locks has it: connect, try the lock, work, let it go, hang up. Nothing is
 * recorded, and a client that freezes keeps its lock; it is what our price is compared with.
 */
import type pg from 'pg';

export type Connect = () => pg.Client;

const key = '4711';

async function connected(connect: Connect, use: (client: pg.Client) => Promise<void>): Promise<void> {
  const client = connect();
  client.on('error', () => undefined);
  await client.connect();
  try {
    await use(client);
  } finally {
    await client.end();
  }
}

async function tries(client: pg.Client, sql: string): Promise<boolean> {
  // Several statements answer with a list.
  const results = [await client.query<{ got: boolean }>(sql)].flat();
  return results.at(-1)?.rows[0]?.got === true;
}

/** By the session's lock. */
export async function bareRun(connect: Connect): Promise<void> {
  await connected(connect, async (client) => {
    if (!(await tries(client, `SELECT pg_try_advisory_lock(${key}) AS got`))) throw new Error('held');
    await client.query(`SELECT pg_advisory_unlock(${key})`);
  });
}

/** By the transaction's, in as few messages: the form that works behind a pooler. */
export async function bareTransaction(connect: Connect): Promise<void> {
  await connected(connect, async (client) => {
    if (!(await tries(client, `BEGIN; SELECT pg_try_advisory_xact_lock(${key}) AS got`)))
      throw new Error('held');
    await client.query('COMMIT');
  });
}

/** @param client holds the lock meanwhile; see {@link holdBare} */
export async function bareSkip(connect: Connect): Promise<void> {
  await connected(connect, async (client) => {
    if (await tries(client, `SELECT pg_try_advisory_lock(${Number(key) + 1}) AS got`))
      throw new Error('not held');
  });
}

/** Answers how to let go. */
export async function holdBare(connect: Connect): Promise<() => Promise<void>> {
  const client = connect();
  await client.connect();
  await tries(client, `SELECT pg_try_advisory_lock(${Number(key) + 1}) AS got`);
  return async () => client.end();
}
