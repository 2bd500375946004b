/**
 * What may happen to events on their way, far oftener than it does: late by seconds to minutes, overtaken by the next
 * one, twice, or never. The nth event of a schedule has the same fate each time that the seed is the same, whatever
 * the time of day and whatever becomes of other schedules' events.
 */
import { createHash } from 'node:crypto';
import type { Due, Fate } from './clock.ts';

export interface ChaosOptions {
  readonly seed: number;
  /** Delays are divided by this; that of an event which is overtaken can't be, since it lasts until the next one. */
  readonly speed: number;
}

const chance = { lost: 0.1, overtaken: 0.25, late: 0.4, twice: 0.4, atOnce: 0.3 };
/** Well below the five minutes after which the sweep takes a slot for missed. */
const lateMs = { least: 2_000, most: 150_000 };
const againMs = { least: 1_000, most: 60_000 };
/** The next one may be a little late itself. */
const leastBehindMs = 2_000;
/** Where the next slot is further away, holding an event back until then would pass for a loss. */
const overtakenWithinMs = 120_000;

export function chaos({ seed, speed }: ChaosOptions): Fate {
  return (due) => {
    const draw = drawsFor(seed, due);
    if (draw() < chance.lost) return [];
    const delayMs = delayOf(due, draw, speed);
    if (draw() >= chance.twice) return [delayMs];
    return [delayMs, draw() < chance.atOnce ? delayMs : delayMs + between(againMs, draw()) / speed];
  };
}

function delayOf({ untilNextMs }: Due, draw: () => number, speed: number): number {
  const lot = draw();
  const aLittleMs = between(lateMs, draw()) / speed;
  if (lot < chance.overtaken && untilNextMs <= overtakenWithinMs)
    return untilNextMs + Math.min(Math.max(aLittleMs, leastBehindMs), untilNextMs / 2);
  return lot < chance.overtaken + chance.late ? aLittleMs : 0;
}

/** As often some seconds as some minutes. */
function between({ least, most }: { least: number; most: number }, lot: number): number {
  return least * (most / least) ** lot;
}

/** Numbers from 0 up to 1, up to eight of them. */
function drawsFor(seed: number, { job, schedule, nth }: Due): () => number {
  const digest = createHash('sha256')
    .update(JSON.stringify([seed, job.name, schedule, nth]))
    .digest();
  let drawn = 0;
  return () => digest.readUInt32BE(4 * drawn++) / 2 ** 32;
}

/** What was done to an event, in words; undefined where nothing was. */
export function fateInWords(delaysMs: readonly number[], untilNextMs: number): string | undefined {
  const [first, second] = delaysMs;
  if (first === undefined) return 'lost';
  const late =
    first > 0 ? `${duration(first)} late${first > untilNextMs ? ', after the next one was due' : ''}` : '';
  const again =
    second === undefined ? '' : second === first ? 'twice' : `again ${duration(second - first)} later`;
  return [late, again].filter(Boolean).join(', ') || undefined;
}

function duration(ms: number): string {
  return ms < 1_000 ? `${Math.ceil(ms)} ms` : `${(ms / 1_000).toFixed(ms < 9_950 ? 1 : 0)} s`;
}
