import type { StopReason } from '../run.ts';

/** Why work was told to stop: the reason of its signal, and what `check()` throws. */
export class Stop extends Error {
  override readonly name = 'Stop';
  readonly reason: StopReason;
  constructor(reason: StopReason, message: string, options?: ErrorOptions) {
    super(message, options);
    this.reason = reason;
  }
}

/** How the work came to its end. `cutOff` is work that ignored its signal: it may still be running somewhere. */
export type WorkResult =
  | { readonly kind: 'returned'; readonly value: unknown }
  | { readonly kind: 'threw'; readonly error: unknown }
  | { readonly kind: 'stopped'; readonly stop: Stop; readonly cutOff: boolean };
