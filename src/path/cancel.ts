import { setTimeout as delay } from 'node:timers/promises';
import { call, callSql, quoted } from '../postgres/call.ts';
import { answerOf, toRecord } from '../postgres/record.ts';
import type { Session } from '../postgres/session.ts';
import { isOver, type RunRecord } from '../run.ts';

export interface CancelOptions {
  /** Who asks; shown in the record. */
  readonly by: string;
  /**
   * How long the holder may take to stop by itself, ms; it hears of the cancel with its next heartbeat, which comes
   * three times a lease. Then its backend is ended, if it still holds this run's lock, and the next run of the lock
   * waits for its lock delay: it may not have heard. 0 ends it at once.
   */
  readonly graceMs: number;
}

/** How often a run that was asked to end is looked at, ms. */
const lookMs = 50;
/** The longest that one question to the server may take, ms: a run that is being ended may be in the middle of its COMMIT. */
const askMs = 6_000;

/**
 * Ends a running run. Its work is told, and where it does not listen its session is ended; its writes roll back.
 * @returns the record once the run is over (as `cancelled`, or as what it became meanwhile); undefined if there is none
 */
export async function cancelRun(
  session: Session,
  runId: string,
  { by, graceMs }: CancelOptions,
): Promise<RunRecord | undefined> {
  const asked = await ask(session, call(session, 'request_cancel', runId, by));
  return asked && !isOver(asked) ? await endWithin(session, runId, by, graceMs) : asked;
}

/** Waits for a run whose end was asked for, and ends it when the grace is over. */
export async function endWithin(
  session: Session,
  runId: string,
  by: string,
  graceMs: number,
): Promise<RunRecord | undefined> {
  const until = performance.now() + graceMs;
  while (performance.now() < until) {
    const run = await ask(
      session,
      `(SELECT cronce.record(r) FROM cronce.run r WHERE r.id = ${quoted(session, runId)})`,
    );
    if (!run || isOver(run)) return run;
    await delay(lookMs);
  }
  const error = { name: 'Stop', message: `cancelled by ${by}`, code: 'cancelled' };
  const verdict = { id: runId, status: 'cancelled', final: true, error };
  return ask(session, call(session, 'settle', { json: verdict }));
}

async function ask(session: Session, expression: string): Promise<RunRecord | undefined> {
  const results = await session.send(callSql(expression, 'run', askMs), askMs + 1_000);
  const stored = answerOf<RunRecord | null>(results, 'run');
  return stored ? toRecord(stored) : undefined;
}
