import { setTimeout as delay } from 'node:timers/promises';

/**
 * How long whoever shows a wrong token waits for the answer: longer each time, by the address it came from. Kept by a
 * process, so what Lambda spreads over many sandboxes it slows down less. A right token never waits.
 */
export interface RefusalOptions {
  readonly firstMs?: number;
  readonly longestMs?: number;
}

/** Who was quiet for so long starts anew, ms. */
const forgottenAfterMs = 60_000;
/** However many addresses someone has: beyond these the one that was quiet longest is forgotten. */
const sourcesAtMost = 1_000;

export class Refusals {
  readonly #firstMs: number;
  readonly #longestMs: number;
  /** The one seen last comes last. */
  readonly #seen = new Map<string, { readonly times: number; readonly at: number }>();

  constructor({ firstMs = 200, longestMs = 2_000 }: RefusalOptions = {}) {
    this.#firstMs = firstMs;
    this.#longestMs = longestMs;
  }

  /** How many addresses are known. */
  get size(): number {
    return this.#seen.size;
  }

  async slowDown(source: string): Promise<void> {
    await delay(this.#note(source));
  }

  /** ms to wait */
  #note(source: string): number {
    const now = performance.now();
    const before = this.#seen.get(source);
    const times = before && now - before.at < forgottenAfterMs ? before.times + 1 : 1;
    this.#seen.delete(source);
    this.#seen.set(source, { times, at: now });
    const [oldest] = this.#seen.keys();
    if (this.#seen.size > sourcesAtMost && oldest !== undefined) this.#seen.delete(oldest);
    return Math.min(this.#longestMs, this.#firstMs * 2 ** Math.min(times - 1, 30));
  }
}
