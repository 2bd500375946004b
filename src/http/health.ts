/**
 * One look at the database for all who ask at once, and for a moment after: nobody needs a token for it, so whoever asks
 * how often, it costs one session a second. Its state belongs to a process and not to a request.
 */
export class Health {
  readonly #look: () => Promise<void>;
  readonly #keptMs: number;
  #last: { readonly at: number; readonly answer: Promise<void>; isOpen: boolean } | undefined;

  constructor(look: () => Promise<void>, keptMs = 1_000) {
    this.#look = look;
    this.#keptMs = keptMs;
  }

  /** @throws what the look has met */
  async check(): Promise<void> {
    const last = this.#last;
    if (last && (last.isOpen || performance.now() - last.at < this.#keptMs)) return last.answer;
    const next = { at: performance.now(), answer: this.#look(), isOpen: true };
    const close = () => void (next.isOpen = false);
    next.answer.then(close, close);
    this.#last = next;
    return next.answer;
  }
}
