/**
 * What the last `npm start` left behind when it was ended amid its runs. Deployed, the sweep finds such runs in its
 * time; here somebody waits for a word of them.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { gapMs } from '../../src/path/limits.ts';
import { call, change } from '../../src/postgres/call.ts';
import { toRecord } from '../../src/postgres/record.ts';
import { Session } from '../../src/postgres/session.ts';
import type { RunRecord } from '../../src/run.ts';

export interface LeftoversOptions {
  readonly databaseUrl: string;
  readonly deployment: string;
  /** The server was started by us and has no other clients: whatever stands as running is dead. */
  readonly isOurs: boolean;
}

const againMs = 2_000;

/** Settles the runs that nobody holds a lock for any more, as the sweep does, and answers their records. */
export async function settleLeftovers({
  databaseUrl,
  deployment,
  isOurs,
}: LeftoversOptions): Promise<RunRecord[]> {
  const session = await Session.open({ url: databaseUrl, driver: 'pg', connectTimeoutMs: 10_000 });
  try {
    const gap = isOurs ? 0 : gapMs;
    const settled = await change<RunRecord[]>(
      session,
      call(session, 'settle_orphans', gap, 1_000, null, deployment),
    );
    return settled.map(toRecord);
  } finally {
    await session.close();
  }
}

/** Once more for those that were too young at first; gives no error, since the sweep comes after it. */
export async function settleYoungLeftovers(options: LeftoversOptions, signal: AbortSignal): Promise<void> {
  if (options.isOurs) return;
  const rounds = Math.ceil(gapMs / againMs) + 1;
  for (let round = 0; round < rounds; round++) {
    if (!(await sleep(againMs, true, { signal }).catch(() => false))) return;
    await settleLeftovers(options).catch(() => []);
  }
}
