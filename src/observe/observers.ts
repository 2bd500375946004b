/**
 * This module's secret: how whoever watches runs is kept from breaking or slowing one. Metrics, spans and lines see every
 * step; the path knows of none of them.
 */
import type { Logger } from '../run.ts';
import { logLine } from './log-line.ts';
import type { Observer } from './observer.ts';

type Step = Exclude<keyof Observer, 'name'>;

/** All of them together, in ms of a run: what is synchronous can't be cut off, but it can be left out from then on. */
const patienceMs = 100;

/** Those of one run, the log line first. */
export class Observers {
  readonly #log: Observer;
  readonly #logger: Logger;
  #others: readonly Observer[];
  #spentMs = 0;

  constructor(logger: Logger, others: readonly Observer[] = []) {
    this.#log = logLine(logger);
    this.#logger = logger;
    this.#others = others;
  }

  tell<S extends Step>(step: S, ...about: Parameters<Required<Observer>[S]>): void {
    this.#tellOne(this.#log, step, about);
    for (const observer of this.#others) {
      const began = performance.now();
      this.#tellOne(observer, step, about);
      this.#spentMs += performance.now() - began;
      if (this.#spentMs > patienceMs) {
        this.#leaveOut(observer);
        return;
      }
    }
  }

  #tellOne<S extends Step>(observer: Observer, step: S, about: Parameters<Required<Observer>[S]>): void {
    const failed = (error: unknown) =>
      this.#warn(`the observer ${observer.name} failed at ${step}`, { error: String(error) });
    try {
      // A method that is given as async is one that answers nothing, as far as types can tell.
      const answer: unknown = (observer[step] as ((...about: unknown[]) => unknown) | undefined)?.call(
        observer,
        ...about,
      );
      if (answer instanceof Promise) answer.catch(failed);
    } catch (error) {
      failed(error);
    }
  }

  #leaveOut({ name }: Observer): void {
    this.#others = [];
    const took = Math.round(this.#spentMs);
    this.#warn(`observers took ${took} ms, ${name} last: they are told no more of this run`, {});
  }

  #warn(message: string, fields: Record<string, unknown>): void {
    try {
      this.#logger.warn(message, fields);
    } catch {
      // The logger is who failed.
    }
  }
}
