import { schemaVersion } from '../path/claim.ts';
import { call, change } from '../postgres/call.ts';
import { isoTime } from '../postgres/record.ts';
import type { Session } from '../postgres/session.ts';
import type { Json } from '../run.ts';

/**
 * Which request an idempotency key stands for. It is written before a run is handed over, since until its function has
 * claimed there is nothing else on record of it: a second request with that key would find nothing, and start another.
 */
export interface KeyedRequest {
  readonly deployment: string;
  readonly key: string;
  readonly job: string;
  readonly fingerprint: string;
  /** ISO 8601. */
  readonly scheduledFor: string;
  readonly params: Json;
  /** How long a key is kept after its first use, ms. */
  readonly keepMs: number;
}

export type KeyState =
  | { readonly state: 'taken'; /** As it was first asked for. */ readonly scheduledFor: string }
  | { readonly state: 'starting' | 'started' | 'other' };

/** Whoever takes a key is done with it in an invocation of Lambda's API, 3 s, and two looks at the database. */
const patienceMs = 10_000;

/** Lambda drops an event that it could not run for 6 h; and then come the sweep and two retries. */
const lostAfterMs = 7 * 3_600_000;

/** Durable once answered. @throws {PostgresError} */
export async function takeKey(session: Session, request: KeyedRequest): Promise<KeyState> {
  const { keepMs, ...of } = request;
  const before = new Date(Date.now() - keepMs).toISOString();
  const given = { ...of, schema: schemaVersion, patienceMs, lostAfterMs, before };
  const answer = await change<KeyState>(session, call(session, 'take_key', { json: given }));
  return answer.state === 'taken' ? { ...answer, scheduledFor: isoTime(answer.scheduledFor) } : answer;
}

/** @param handed whether the run's event was taken; if not, the key may be used to start it again */
export async function settleKey(
  session: Session,
  { deployment, key }: KeyedRequest,
  handed: boolean,
): Promise<void> {
  await change(session, `to_jsonb(${call(session, 'settle_key', deployment, key, handed)})`);
}
