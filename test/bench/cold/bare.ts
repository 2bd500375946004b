/** The bare recipe as a handler, bundled as ours is. Its work is that of `expire-sessions`, which ours does. */
import pg from 'pg';

export async function handler(): Promise<{ deleted: number | null }> {
  const client = new pg.Client({ connectionString: process.env['DATABASE_URL'] });
  await client.connect();
  try {
    const { rows } = await client.query<{ got: boolean }>('SELECT pg_try_advisory_lock(4713) AS got');
    if (rows[0]?.got !== true) throw new Error('held');
    const { rowCount } = await client.query('DELETE FROM app.session WHERE expires_at < $1', [new Date()]);
    await client.query('SELECT pg_advisory_unlock(4713)');
    return { deleted: rowCount };
  } finally {
    await client.end();
  }
}
