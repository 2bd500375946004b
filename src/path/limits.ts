/**
 * How an invocation's time is divided, in one place, since each part must leave room for the others. All in ms.
 *
 *     invoked                                                                             killed
 *     ├─ connect ─┬─ T0: claim ────────┬─ T1: enter ─┬─ rest ──┬─ work ───────┬─ record, publish ─┤
 *     │           │ claimLimitMs       │ enterLimitMs│ lock    │ timeoutMs of │ recordingMs is    │
 *     │           │ + the job's waitMs │             │ delay   │ the job      │ kept for it       │
 *
 *     While it holds the lock, from T1 on, counted from the sending of the last beat that was answered:
 *     ├─ beatMs ─┼─ beatMs ─┼─ … silence …
 *                ├─────────── vouched for: lease − marginMs ───────────┤ the work is told to stop
 *                ├─────────── the lease, by the server's own timer ──────────────┤ the lock is free
 *
 * A function's time limit, which infra reckons, has room for the whole of it: see `aroundTheRunMs`.
 */

/** How long a claim looks for the run behind a held lock before it gives up its slot: another T0 is short. */
export const patienceMs = 1_000;

/**
 * How long a claim may wait for rows of ours, and for the fenced transactions of dead predecessors to end: those are ended
 * by force after a moment, so it takes a second at most unless another role's session is in the way.
 */
export const obstacleMs = 6_000;

/** The longest that a claim takes in all, besides what the job wants to wait. */
export const claimLimitMs = patienceMs + 2 * obstacleMs;

/** How long `enter` may wait for a lock: another claim's T0 is short. It waits for two at most. */
export const enterWaitMs = 2_500;

/** How long it may take in all. Longer than both waits: lock_timeout shall speak, and not statement_timeout. */
export const enterLimitMs = 2 * enterWaitMs + 1_000;

/** How long a start record may stand without its lock: until it must have entered, and a little. */
export const gapMs = enterLimitMs + 1_000;

/** What is kept of the invocation's time for recording an outcome before the kill. */
export const recordingMs = 4_000;

/** How long work that was told to stop may take to end by itself. */
export const graceMs = 500;

/** What one short message to the server and its answer may take, at the least. */
export const messageMs = 1_500;

/** What asking for the next owed slot may take: a session, a statement, an event to Lambda. */
export const passingOnMs = 5_000;

/** Beside a run's own time, waiting and delay, what a function's limit has room for: connecting, claiming, recording, publishing. */
export const aroundTheRunMs = 10_000;

/** Beats three times a lease, at least every 5 s; gives up 2 s (or a quarter of a short lease) before its end. */
export function rhythm(leaseMs: number): { readonly beatMs: number; readonly marginMs: number } {
  return { beatMs: Math.min(5_000, leaseMs / 3), marginMs: Math.min(2_000, leaseMs / 4) };
}

/** A delay shorter than the lease would not cover what a cut-off holder vouches for; 0 is a job's own word that none is needed. */
export function lockDelayMs(asked: number | null, leaseMs: number): number {
  return asked === 0 ? 0 : Math.max(asked ?? leaseMs, leaseMs);
}
