import { expect, it } from 'vitest';
import { dueAt } from '../../src/sweep/due.ts';
import { defineJob } from '../../src/job.ts';

const hourly = 'cron(0 * * * ? *)';
const [firstEnd, secondStart] = ['2026-11-10T00:00:00.000Z', '2026-11-20T00:00:00.000Z'];

/** On record in whichever order, each window since it was deployed. */
it.each([
  ['the first', 0],
  ['the second', 1],
])(
  'two windows of one expression are each known since their own time: %s on record first',
  (_which, first) => {
    const job = defineJob({
      name: 'windows',
      schedule: [
        { at: hourly, end: firstEnd },
        { at: hourly, start: secondStart },
      ],
      work: async () => undefined,
    });
    const of = { expression: hourly, timeZone: 'UTC' };
    const rows = [
      { ...of, start: null, end: firstEnd, knownSince: '2026-11-01T00:00:00Z' },
      { ...of, start: secondStart, end: null, knownSince: '2026-11-25T00:00:00Z' },
    ];
    const schedules = first === 0 ? rows : rows.toReversed();
    const record = { isKnown: false, firstSeenAt: null, firstSlotAt: null, delivered: [], schedules };
    const isDue = (at: string) => dueAt(new Date(at), job, record, new Date('2026-12-01T00:00:00Z')).isDue;
    expect(isDue('2026-11-05T12:00:00Z'), 'in the first').toBe(true);
    expect(isDue('2026-11-15T12:00:00Z'), 'in neither').toBe(false);
    expect(isDue('2026-11-22T12:00:00Z'), 'in the second, before it was known').toBe(false);
    expect(isDue('2026-11-26T12:00:00Z'), 'in the second').toBe(true);
  },
);
