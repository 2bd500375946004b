import { expect, it } from 'vitest';
import { chaos, fateInWords, type ChaosOptions } from '../../../infra/local/chaos.ts';
import type { Due } from '../../../infra/local/clock.ts';
import { defineJob } from '../../../src/job.ts';

const job = defineJob({ name: 'tidy-up', work: async () => null });
const minuteMs = 60_000;

function fates(options: Partial<ChaosOptions>, untilNextMs = minuteMs): (readonly number[])[] {
  const decide = chaos({ seed: 7, speed: 1, ...options });
  const dues = Array.from({ length: 1_000 }, (_, nth): Due => {
    return { job, schedule: 0, nth, slot: new Date(nth * untilNextMs), untilNextMs, event: {} };
  });
  return dues.map(decide);
}

const delaysOf = (all: readonly (readonly number[])[]) => all.flatMap(([first]) => first ?? []);

it('has every fate in store, and none too often', () => {
  const all = fates({});
  const counts = [
    all.filter(({ length }) => length === 0),
    all.filter(([first]) => first === 0),
    all.filter(([first = 0]) => first > 0 && first < minuteMs),
    all.filter(([first = 0]) => first > minuteMs),
    all.filter(([first, second]) => second !== undefined && second === first),
    all.filter(([first = 0, second = 0]) => second > first),
  ].map(({ length }) => length);
  for (const count of counts) expect(count).toSatisfy((n: number) => n > 50 && n < 500);
});

it('keeps every delivery within the time after which the sweep takes a slot for missed', () => {
  expect(Math.max(...fates({}).flat())).toBeLessThan(5 * minuteMs);
});

it('is repeated by its seed, and another by another', () => {
  expect(fates({ seed: 8 })).toEqual(fates({ seed: 8 }));
  expect(fates({ seed: 8 })).not.toEqual(fates({ seed: 9 }));
});

it('divides its delays by the speed, but lets the next one overtake all the same', () => {
  const delays = delaysOf(fates({ speed: 100 }));
  const overtaken = delays.filter((ms) => ms > minuteMs);
  expect(overtaken.length).toBeGreaterThan(100);
  expect(Math.max(...overtaken)).toBeLessThanOrEqual(minuteMs + 2_000);
  expect(Math.max(...delays.filter((ms) => ms < minuteMs))).toBeLessThan(1_500);
});

it('does not hold an event back for the next one where that is far away', () => {
  expect(Math.max(...fates({}, 24 * 60 * minuteMs).flat())).toBeLessThan(5 * minuteMs);
});

it.each([
  [[0], undefined],
  [[], 'lost'],
  [[4_200], '4.2 s late'],
  [[0, 0], 'twice'],
  [[0, 12_000], 'again 12 s later'],
  [[0, 70], 'again 70 ms later'],
  [[61_500, 64_500], '62 s late, after the next one was due, again 3.0 s later'],
])('says %j in words: %s', (delaysMs, words) => {
  expect(fateInWords(delaysMs, minuteMs)).toBe(words);
});
