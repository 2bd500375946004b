/** Lets so many in at a time: what waits for a timer of the server must not be starved by what else is tried. */
export class Gate {
  #places: number;
  #waiting: (() => void)[] = [];

  constructor(places: number) {
    this.#places = places;
  }

  async through<T>(body: () => Promise<T>): Promise<T> {
    if (this.#places > 0) this.#places -= 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    try {
      return await body();
    } finally {
      const next = this.#waiting.shift();
      if (next) next();
      else this.#places += 1;
    }
  }
}
