/**
 * What each peer is asked for: to run a job once for a slot, from any number of deliveries. One file a peer, with its
 * whole configuration; what it can't do is told by the figures.
 */
import type { PeerName, Shelf } from '../peers.ts';

export interface Addresses {
  /** Of a database of the peer's own. */
  readonly postgres: string;
  readonly redisPort: number;
  readonly dynamoPort: number;
}

/** The job's function. What it does at which peer is the measurement's affair. */
export type Work = (job: string, slot: string) => Promise<void>;

export interface Started {
  /**
   * One delivery, until it is over.
   * @returns whether its work ran; `false` where it was turned away
   * @throws whatever would be thrown at its caller
   */
  deliver(job: string, slot: string): Promise<boolean>;
  stop(): Promise<void>;
}

export interface Peer {
  readonly name: PeerName;
  readonly on: Shelf;
  /** Whether it needs a process that lives on between deliveries. */
  readonly resident: boolean;
  /** How it is set up here, and what of its documentation says so; one line for the tables. */
  readonly setUp: string;
  /** Without a delivery nobody takes over; or only a restart of the process that died does. */
  readonly takenOverBy: 'a delivery' | 'itself' | 'its restart';
  start(addresses: Addresses, jobs: readonly string[], work: Work): Promise<Started>;
}

/** For peers whose work begins somewhere else than where it is asked for: who waits for which slot. */
export class Waiting {
  readonly #waiting = new Map<string, (() => void)[]>();

  /** Call it before asking: the work may be over sooner than the answer is here. */
  until(job: string, slot: string): Promise<void> {
    return new Promise((resolve) => {
      const all = this.#waiting.get(`${job} ${slot}`) ?? [];
      this.#waiting.set(`${job} ${slot}`, [...all, resolve]);
    });
  }

  over(job: string, slot: string): void {
    for (const resolve of this.#waiting.get(`${job} ${slot}`) ?? []) resolve();
    this.#waiting.delete(`${job} ${slot}`);
  }
}
