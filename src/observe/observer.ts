import type { RunRecord } from '../run.ts';

/**
 * Sees the steps of runs, in their order. Each call is made at once and not waited for: what takes its time should take
 * note and do it later. What it throws, or a promise of its that fails, is a warning in the log and nothing more; one
 * that takes long is told no more of that run.
 */
export interface Observer {
  /** For messages about it. */
  readonly name: string;
  /** T0 is on record: the start of a run, or what turned its delivery away. */
  claimed?(run: RunRecord): void;
  /** The run has its lock; its work begins after its lock delay, if there is one. */
  entered?(run: RunRecord): void;
  /** The work has ended, by itself or because it was told to; what that comes to is not on record yet. */
  performed?(run: RunRecord, how: 'returned' | 'threw' | 'stopped'): void;
  /** An outcome is on record: this run's, a dead predecessor's, or one that the sweep found. Maybe once more, by its id. */
  recorded?(run: RunRecord): void;
  /** It was offered to every sink; what one did not take goes out later. */
  published?(run: RunRecord): void;
}
