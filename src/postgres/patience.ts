import { setTimeout as delay } from 'node:timers/promises';
import { isPassing } from './errors.ts';

/**
 * A server that is full, or still starting, takes us in a moment. Each who asks again waits a time drawn by chance, and
 * longer each time: hundreds that were turned away together must not come back together.
 */

/** The first pause is up to so long, ms; each later one up to twice the one before. */
const firstPauseMs = 100;

/** The longest, ms. A thousand that wait ask a server some 400 times a second, which it still answers easily. */
const longestPauseMs = 5_000;

/**
 * Does `attempt` again where the server turned us away for the moment and nothing was done yet.
 * @param patienceMs for how long, from the first attempt on, another may begin
 */
export async function patiently<T>(attempt: () => Promise<T>, patienceMs: number): Promise<T> {
  const until = performance.now() + patienceMs;
  for (let pauseMs = firstPauseMs; ; pauseMs = Math.min(2 * pauseMs, longestPauseMs)) {
    try {
      return await attempt();
    } catch (error) {
      const drawnMs = Math.random() * pauseMs;
      if (!isPassing(error) || performance.now() + drawnMs > until) throw error;
      await delay(drawnMs);
    }
  }
}
