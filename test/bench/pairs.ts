/** Interleaved measurement: each round does every thing once, in an order that turns, so that all share the same weather. */

export interface Spread {
  readonly median: number;
  readonly quartiles: readonly [number, number];
}

export type Things<K extends string> = Readonly<Record<K, () => Promise<unknown>>>;
export type Times<K extends string> = Record<K, number[]>;

/** Times in ms, a round each; the first rounds only warm up. */
export async function interleave<K extends string>(
  things: Things<K>,
  rounds: number,
  timeOf: (thing: () => Promise<unknown>) => Promise<number> = wallMs,
): Promise<Times<K>> {
  const names = Object.keys(things) as K[];
  const times = Object.fromEntries(names.map((name) => [name, [] as number[]])) as Times<K>;
  const warmUps = Math.ceil(rounds / 10);
  for (let round = -warmUps; round < rounds; round++)
    for (let n = 0; n < names.length; n++) {
      const name = names[(n + round + warmUps) % names.length] as K;
      const ms = await timeOf(things[name]);
      if (round >= 0) times[name].push(ms);
    }
  return times;
}

export async function wallMs(thing: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now();
  await thing();
  return performance.now() - startedAt;
}

/** Of pairs, one by one: what both suffer drops out. */
export function ratio(ours: readonly number[], theirs: readonly number[]): Spread {
  return spreadOf(ours.map((one, n) => one / (theirs[n] ?? NaN)));
}

export function spreadOf(all: readonly number[]): Spread {
  const sorted = [...all].sort((one, other) => one - other);
  const at = (share: number) => {
    const place = (sorted.length - 1) * share;
    const [low, high] = [sorted[Math.floor(place)] ?? NaN, sorted[Math.ceil(place)] ?? NaN];
    return round(low + (high - low) * (place % 1));
  };
  return { median: at(0.5), quartiles: [at(0.25), at(0.75)] };
}

function round(value: number): number {
  return Number(value.toPrecision(4));
}
