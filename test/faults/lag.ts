/** How long an event loop has been kept from turning, at the most: by the machine, or by what runs in it. */
export class Lag {
  #lastTurn = performance.now();
  #longestMs = 0;
  readonly #timer = setInterval(() => this.#turn(), 10);

  get longestMs(): number {
    this.#turn();
    return Math.round(this.#longestMs);
  }

  end(): void {
    clearInterval(this.#timer);
  }

  #turn(): void {
    const now = performance.now();
    this.#longestMs = Math.max(this.#longestMs, now - this.#lastTurn);
    this.#lastTurn = now;
  }
}
