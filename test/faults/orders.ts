/** What the campaign tells its worker processes, and what they tell it. No I/O. */
import type { Target } from '../../src/postgres/driver.ts';
import type { RunRecord, Status, StopReason } from '../../src/run.ts';

/** What the work does, one after the other. None but `idle` heeds its signal: that is for the coordinator to bear. */
export type Step =
  /** Rows through `tx`, which must be there exactly if the run succeeds. */
  | { readonly do: 'write'; readonly rounds: number; readonly everyMs: number }
  /** A counter read, and later written, without any protection but the lock. */
  | { readonly do: 'count'; readonly pauseMs: number }
  /** A statement that keeps the server busy. */
  | { readonly do: 'statement'; readonly ms: number; readonly swallow?: boolean }
  | { readonly do: 'limit statements'; readonly ms: number }
  /** Waits to be stopped. */
  | { readonly do: 'idle' }
  /** Effects outside the transaction, each right behind `check()`. */
  | { readonly do: 'effects'; readonly rounds: number; readonly everyMs: number }
  /** In each round a row through `tx`, an effect behind `check()` and a fenced row; goes on where one is refused. */
  | { readonly do: 'everything'; readonly rounds: number; readonly everyMs: number }
  /** Fenced transactions that stay open so long, one after the other; goes on where one is refused. */
  | { readonly do: 'fenced'; readonly rounds: number; readonly everyMs: number; readonly openMs: number }
  /** Blocks the event loop: by itself, while a statement is under way, or inside a fenced transaction. */
  | { readonly do: 'block'; readonly ms: number; readonly in?: 'statement' | 'fenced' }
  | { readonly do: 'throw' }
  /** Asks `check()` all the time, and does nothing else: until when it vouched is what is measured. */
  | { readonly do: 'vouch'; readonly ms: number }
  /** A statement of the job's own, whatever it may leave behind. */
  | { readonly do: 'sql'; readonly text: string }
  /** The same, and nobody waits for it. */
  | { readonly do: 'forget'; readonly text: string }
  /** Throws, or returns, what test/support/hostile.ts makes of this seed. */
  | { readonly do: 'throw odd' | 'return odd'; readonly which: number };

export interface Order {
  readonly id: number;
  readonly job: string;
  /** Also the name of the counter. */
  readonly lock: string;
  readonly slot: string;
  readonly target: Target;
  readonly leaseMs: number;
  readonly timeoutMs: number;
  /** How long to wait for a held lock; 0 skips at once. */
  readonly waitMs: number;
  /** Has the run in the way end, and waits so long for it. */
  readonly replaceMs?: number;
  readonly work: readonly Step[];
}

/** Until when `check()` has passed, for certain; 0 if it was never asked. */
export interface Vouched {
  readonly runId: string;
  readonly fence: string;
  readonly lock: string;
  readonly until: number;
}

export interface ThrownError {
  readonly name: string;
  readonly message: string;
  /** False for what a WebSocket throws: a DOM event. */
  readonly isError: boolean;
}

/** Times are the wall clock's, ms: all processes and the server share it. */
export type WorkerEvent = { readonly order: number; readonly at: number } & (
  | { readonly kind: 'begun'; readonly runId: string; readonly fence: string; readonly lock: string }
  /** A step is about to be done. */
  | { readonly kind: 'step'; readonly step: Step['do'] }
  /** `lagMs`: the longest time for which the event loop has been kept from turning since the order came. */
  | {
      readonly kind: 'stopped';
      readonly reason: StopReason;
      readonly lagMs: number;
      readonly vouched: Vouched;
    }
  | { readonly kind: 'refused'; readonly what: string; readonly error: ThrownError }
  /** The job's function has come to its end, maybe long after its run. */
  | { readonly kind: 'left'; readonly vouched: Vouched }
  /** The log line of an outcome. */
  | { readonly kind: 'logged'; readonly runId: string; readonly status: Status }
  /** How `coordinate()` ended. */
  | { readonly kind: 'told'; readonly run: RunRecord }
  | { readonly kind: 'threw'; readonly error: ThrownError }
  /** What nobody caught: a violation, always. */
  | { readonly kind: 'stray'; readonly error: ThrownError }
  | { readonly kind: 'ready' }
);

type Bare<E> = E extends unknown ? Omit<E, 'order' | 'at'> : never;
/** An event without what every event has. */
export type Told = Bare<WorkerEvent>;
