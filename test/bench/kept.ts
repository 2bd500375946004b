/** What docs/bench/results.json holds. */
import type { Cold } from './cold.ts';
import type { Flights } from './flights.ts';
import type { History } from './history.ts';
import type { Comparison } from './invocation.ts';
import type { PeerParts } from './peers.ts';

export interface Under {
  readonly date: string;
  readonly pairs: number;
  readonly cores: number;
  readonly memoryGb: number;
  /** Of the machine, when it began: more than its cores means that others worked too. */
  readonly load: number;
  readonly versions: Readonly<Record<'node' | 'postgres' | 'pg' | '@neondatabase/serverless', string>>;
}

/** Each part is measured by itself, and keeps the circumstances of its own. */
export interface Results extends PeerResults {
  flights?: { readonly under: Under; readonly found: readonly Flights[] };
  invocation?: { readonly under: Under; readonly found: readonly Comparison[] };
  history?: { readonly under: Under; readonly found: History };
  cold?: { readonly under: Under; readonly found: Cold };
}

/** What was measured beside peers, each part by itself. */
export type PeerResults = {
  readonly [P in keyof PeerParts]?: { readonly under: UnderPeers; readonly found: PeerParts[P] };
};

export interface UnderPeers extends Omit<Under, 'versions'> {
  /** Of the peers' process and packages too. */
  readonly versions: Readonly<Record<string, string>>;
}
