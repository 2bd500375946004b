/**
 * A point in time by both of the process's clocks. The monotonic one stands still while a sandbox is
 * suspended, the wall clock can be set back: what has surely passed is the larger of the two.
 */
export interface Moment {
  readonly monotonicMs: number;
  readonly wallMs: number;
}

export function moment(): Moment {
  return { monotonicMs: performance.now(), wallMs: Date.now() };
}

export function elapsedMs(since: Moment): number {
  return Math.max(performance.now() - since.monotonicMs, Date.now() - since.wallMs);
}
