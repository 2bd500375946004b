import type { JobOptions } from '../../src/job.ts';

/** What happens in one schedule: drawn from a seed, played in real time. All times are ms from its beginning. */
export interface Plan {
  readonly jobs: readonly JobPlan[];
  readonly clients: readonly ClientPlan[];
  readonly injuries: readonly Injury[];
}

/** Of two jobs both have the same lock. */
export type JobPlan = Required<Pick<JobOptions, 'overlap' | 'places' | 'leaseMs' | 'waitMs'>> &
  Pick<JobOptions, 'lockDelayMs'>;

export interface ClientPlan {
  readonly job: number;
  /** Which slot of its job. */
  readonly slot: number;
  readonly startsAt: number;
  readonly worksMs: number;
  /** So many small commits beside the lock's transaction, spread over its work. */
  readonly fenced: number;
  /** What the job sets in the lock's transaction, and leaves so. */
  readonly leaves: 'nothing' | 'a role' | 'limits';
  readonly listens: boolean;
}

export interface Injury {
  readonly at: number;
  /** `banish`: cut off, and its run ended by force before it can know. */
  readonly kind: 'kill' | 'partition' | 'stall' | 'banish' | 'cancel' | 'terminate' | 'sweep';
  /** Of a network's injury, the client; of the others, which of the runs that stand as running. */
  readonly whom: number;
  readonly forMs: number;
}

type Random = () => number;

export function drawPlan(random: Random): Plan {
  const between = (least: number, most: number) => least + Math.floor(random() * (most - least + 1));
  const oneOf = <T>(all: readonly T[]) => all[between(0, all.length - 1)] as T;
  const first = drawJob(between, oneOf);
  const shares = first.overlap !== 'allow' && random() < 0.4;
  const jobs = shares
    ? [first, { ...drawJob(between, oneOf), overlap: oneOf(['skip', 'wait'] as const), places: first.places }]
    : [first];
  const clients = Array.from({ length: between(2, 4) }, () => drawClient(jobs.length, between, oneOf));
  const injuries = Array.from({ length: between(1, 3) }, () => drawInjury(clients.length, between, oneOf));
  return { jobs, clients, injuries };
}

type Between = (least: number, most: number) => number;
type OneOf = <T>(all: readonly T[]) => T;

function drawJob(between: Between, oneOf: OneOf): JobPlan {
  const overlap = oneOf(['skip', 'wait', 'wait', 'replace', 'allow'] as const);
  return {
    overlap,
    places: overlap === 'allow' ? 1 : oneOf([1, 1, 2]),
    leaseMs: between(2_000, 3_000),
    waitMs: between(500, 5_000),
    ...(between(1, 5) === 1 ? { lockDelayMs: 0 } : {}),
  };
}

function drawClient(jobs: number, between: Between, oneOf: OneOf): ClientPlan {
  return {
    job: between(0, jobs - 1),
    slot: between(0, 1),
    startsAt: between(0, 1_200),
    worksMs: between(100, 4_000),
    fenced: between(0, 4),
    leaves: oneOf(['nothing', 'a role', 'limits'] as const),
    listens: between(1, 3) > 1,
  };
}

function drawInjury(clients: number, between: Between, oneOf: OneOf): Injury {
  return {
    at: between(200, 3_500),
    kind: oneOf([
      'kill',
      'partition',
      'stall',
      'banish',
      'banish',
      'banish',
      'cancel',
      'terminate',
      'sweep',
    ] as const),
    whom: between(0, clients - 1),
    forMs: between(300, 4_000),
  };
}
