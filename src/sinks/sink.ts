import type { Outcome, RunRecord } from '../run.ts';

/** Where outcomes go, besides the log. */
export interface Sink {
  /** Stored with each record that has reached it; never rename one. */
  readonly name: string;
  /**
   * Sends each record; answers the ids that have certainly arrived, and reports why another has not. One that can't be
   * taken keeps none of the others from arriving. May throw, if none has.
   */
  send(records: readonly RunRecord[], signal: AbortSignal, report: Report): Promise<ReadonlySet<string>>;
  /** Which outcomes it is to have; absent, all. One that it doesn't want is done with, as far as it goes. */
  wants?(run: RunRecord): boolean;
}

/** Which outcomes go to a sink: those that meet all that is said here. */
export interface Wanted {
  /** Default: all. */
  readonly outcomes?: readonly Outcome[];
  /** By name; default: all, the sweep among them. */
  readonly jobs?: readonly string[];
  /** Only what no further attempt follows: for people, who need not hear of what a retry has mended. */
  readonly final?: boolean;
}

export function wanting({ outcomes, jobs, final = false }: Wanted): (run: RunRecord) => boolean {
  return (run) =>
    (outcomes as readonly string[] | undefined)?.includes(run.status) !== false &&
    jobs?.includes(run.job) !== false &&
    (!final || run.final !== false);
}

/** Why a record was not taken: the other side's own code, and what it said. */
export interface Refusal {
  readonly code: string;
  readonly message: string;
}

export type Report = (id: string, refusal: Refusal) => void;

/** By the code that the other side gave, which of an SDK's errors is the name. */
export function refusalOf(error: unknown): Refusal {
  if (!(error instanceof Error)) return { code: 'Unknown', message: String(error) };
  const { code } = error as { code?: unknown };
  return {
    code: error.name === 'Error' && typeof code === 'string' ? code : error.name,
    message: error.message,
  };
}
