import { ConnectionLost } from '../postgres/errors.ts';
import type { Session } from '../postgres/session.ts';

/**
 * Lends a session of its own to `use`, and closes it. Ends within `limitMs`, whether a session can't be had, doesn't
 * answer, or answers too slowly.
 * @throws {ConnectionLost} where time ran out
 */
export async function lend<T>(
  openSession: () => Promise<Session>,
  limitMs: number,
  use: (session: Session) => Promise<T>,
): Promise<T> {
  const tooLate = new ConnectionLost(`the database took longer than ${limitMs} ms`);
  const limit = AbortSignal.timeout(limitMs);
  const lent = openSession().then(async (session) => useWithin(limit, tooLate, session, use));
  lent.catch(() => undefined); // where the limit comes first, its own rejection comes to nobody
  return Promise.race([lent, rejection(limit, tooLate)]);
}

async function useWithin<T>(
  limit: AbortSignal,
  tooLate: ConnectionLost,
  session: Session,
  use: (session: Session) => Promise<T>,
): Promise<T> {
  const giveUp = () => session.destroy(tooLate);
  limit.addEventListener('abort', giveUp);
  if (limit.aborted) giveUp();
  try {
    return await use(session);
  } finally {
    limit.removeEventListener('abort', giveUp);
    await session.close();
  }
}

async function rejection(signal: AbortSignal, error: Error): Promise<never> {
  return new Promise((_, reject) => {
    signal.addEventListener('abort', () => reject(error));
  });
}
