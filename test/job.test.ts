import { runInNewContext } from 'node:vm';
import { describe, expect, it } from 'vitest';
import { declareJob, defineJob, defineJobs, JobError, jobOptions, type JobOptions } from '../src/job.ts';
import { lockKey } from '../src/lock-name.ts';

const work = async () => 1;

/** What an act is refused with; the test fails if it isn't, or by another kind of error. */
function refusal(act: () => unknown): string {
  try {
    act();
  } catch (error) {
    if (error instanceof JobError) return error.message;
    throw error;
  }
  return expect.fail('nothing was refused');
}

const declared = (options: unknown) => refusal(() => defineJob(options as JobOptions));
const given = (options: object) => declared({ name: 'a', work, ...options });
const scheduled = (schedule: unknown) => given({ schedule });

describe('H1: a schedule', () => {
  const at = 'rate(1 hour)';
  const atWords = 'allowed: cron(…) or rate(…), as AWS writes them';
  it.each([
    [{ at, timezone: 'Europe/Berlin' }, 'there is no option of schedule "timezone"; did you mean timeZone?'],
    [{ at, tz: 'Europe/Berlin' }, 'there is no option of schedule "tz"; did you mean timeZone?'],
    [
      { at, flexibleMinuets: 5 },
      'there is no option of schedule "flexibleMinuets"; did you mean flexibleMinutes?',
    ],
    [{ at, enable: false }, 'there is no option of schedule "enable"; did you mean enabled?'],
    [
      { at, xyz: 1 },
      'there is no option of schedule "xyz"; allowed: at, timeZone, flexibleMinutes, start, end, enabled',
    ],
    [{ cron: '0 3 * * ? *' }, 'there is no option of schedule "cron"; did you mean at?'],
    [{}, `schedule.at is undefined; ${atWords}`],
    [{ at: 5 }, `schedule.at is 5; ${atWords}`],
    [{ at: null }, `schedule.at is null; ${atWords}`],
    [{ at: [at] }, `schedule.at is [ 'rate(1 hour)' ]; ${atWords}`],
    [{ at: 'rate(1 hours)' }, 'schedule: Invalid rate unit "hours" in "rate(1 hours)": write rate(1 hour)'],
    ['0 3 * * *', 'schedule: Invalid expression "0 3 * * *": write cron(0 3 * * ? *)'],
    [[at, { at, Start: 1 }], 'there is no option of schedule[1] "Start"; did you mean start?'],
    [5, 'schedule is 5; allowed: cron(…) or rate(…), an object with such an at, or a list of these'],
    [
      [at, true],
      'schedule[1] is true; allowed: cron(…) or rate(…), an object with such an at, or a list of these',
    ],
    [
      null,
      'schedule is null; allowed: cron(…) or rate(…), an object with such an at, or a list of these; leave it out for the default',
    ],
    [
      { at, flexibleMinutes: '5' },
      'schedule.flexibleMinutes is "5"; allowed: a whole number from 1 to 1440; write 5 without quotes',
    ],
    [{ at, enabled: 'false' }, 'schedule.enabled is "false"; allowed: true or false'],
  ])('%j', (schedule, message) => {
    expect(scheduled(schedule)).toBe(`job "a": ${message}`);
  });

  it.each([[[['rate(1 hour)']]], [{ at, [Symbol('at')]: 1 }], [Object.create({ at, zone: 'UTC' })]])(
    'has no lists in lists, no symbols and no strangers that are inherited: %o',
    (schedule) => {
      expect(scheduled(schedule)).toMatch(/^job "a": (schedule\[0\] is \[|there is no option of schedule )/);
    },
  );

  it.each([
    'cron(0 3 30 2 ? *)',
    'cron(0 3 31 4 ? *)',
    'cron(0 3 29 2 ? 2027)',
    'cron(0 3 * * ? 2020)',
    { at: 'cron(0 3 * * ? 2019-2025)', timeZone: 'Asia/Tokyo' },
  ])('that never falls due: %j', (schedule) => {
    expect(scheduled(schedule)).toMatch(/^job "a": schedule is "cron.*; it never falls due$/);
  });

  it.each([
    { at: 'cron(0 3 1 1 ? *)', start: '2027-01-02T00:00:00Z', end: '2027-12-31T00:00:00Z' },
    { at: 'cron(0 3 * * ? 2027)', start: '2028-01-01T00:00:00Z' },
    { at: 'cron(0 3 * * ? *)', end: '2020-01-01T00:00:00Z' },
    { at: 'rate(1 hour)', end: '2020-01-01T00:00:00Z' },
    // 03:00 in Berlin is 02:00 in winter.
    {
      at: 'cron(0 3 1 1 ? *)',
      timeZone: 'Europe/Berlin',
      start: '2027-01-01T02:30:00Z',
      end: '2027-01-01T04:00:00Z',
    },
  ])('that never falls due between its start and end: %j', (schedule) => {
    expect(scheduled(schedule)).toMatch(/it never falls due between start and end$/);
  });

  it.each([
    { at: 'cron(0 3 1 1 ? *)', start: '2027-01-01T03:00:00Z', end: '2027-01-01T03:00:01Z' },
    { at: 'cron(0 3 1 1 ? *)', start: '2026-12-31T00:00:00Z', end: '2027-01-01T04:00:00+01:00' },
    { at: 'rate(1 day)', start: '2027-01-01T03:00:00Z', end: '2027-01-01T03:00:01Z' },
    'cron(0 3 29 2 ? *)',
    'cron(0 3 * * ? 2199)',
  ])('that falls due at the very start or end, or rarely, is taken: %j', (schedule) => {
    expect(defineJob({ name: 'a', schedule, work }).schedules).toHaveLength(1);
  });

  it.each(['2027-01-01T00:00:00Z', '2026-12-31T23:00:00Z', '2027-01-01T00:30:00+01:00'])(
    'that ends at its start or before: %s',
    (end) => {
      const start = '2027-01-01T00:00:00Z';
      expect(scheduled({ at: 'rate(1 hour)', start, end })).toMatch(
        /^job "a": schedule\.end is "202.*; allowed: a time after the start, which is 2027-01-01T00:00:00\.000Z$/,
      );
    },
  );

  it.each([
    '2',
    '03/04/2027',
    '2027-01-01T00:00:00',
    '2027-01-01',
    '2027-02-30T00:00:00Z',
    '2027-01-01 00:00:00Z',
    '2027-01-01T25:00:00Z',
    '2027-01-01T24:00:00Z',
    '2027-13-01T00:00:00Z',
    '2027-01-01T00:00:00+0100',
    '2027-01-01T00:00:00z',
    '2027-01-01T00:00:00[Europe/Berlin]',
    '+012027-01-01T00:00:00Z',
    '9999-01-01T00:00:00Z',
    '1969-01-01T00:00:00Z',
    ' 2027-01-01T00:00:00Z',
    '',
    'tomorrow',
    5,
    NaN,
    null,
    true,
    {},
    new Date(),
    ['2027-01-01T00:00:00Z'],
  ])('with a start or end that is no time with a zone: %j', (time) => {
    for (const option of ['start', 'end'])
      expect(scheduled({ at: 'rate(1 hour)', [option]: time })).toMatch(`schedule.${option} is `);
    expect(scheduled({ at: 'rate(1 hour)', start: time })).toMatch(
      /allowed: a time in ISO 8601 with its zone/,
    );
  });
});

describe('H2: a zone', () => {
  it.each([
    'BST',
    'PST',
    'IST',
    'CST',
    'JST',
    'ECT',
    'AGT',
    'US/Pacific-New',
    'Mars/Olympus',
    '+01:00',
    'GMT+1',
    'UTC+1',
    '',
    ' UTC',
    'Factory',
    'SystemV/PST8',
    'Etc/Unknown',
    'Asia/Hanoi',
    'localtime',
    'posix/UTC',
    'Europe/Berlin\u0000',
  ])('that IANA does not have: %j', (timeZone) => {
    expect(scheduled({ at: 'rate(1 hour)', timeZone })).toMatch(
      /^job "a": schedule: Invalid time zone .*: use an IANA name such as UTC/,
    );
  });

  it.each([
    ['EST5edt', 'EST5EDT'],
    ['europe/berlin', 'Europe/Berlin'],
    ['utc', 'UTC'],
    ['us/pacific', 'US/Pacific'],
    ['asia/calcutta', 'Asia/Calcutta'],
    ['ETC/GMT+5', 'Etc/GMT+5'],
  ])('in another case: %s', (timeZone, meant) => {
    expect(scheduled({ at: 'rate(1 hour)', timeZone })).toMatch(`: write ${meant}`);
  });

  it.each([null, 5, ['UTC'], {}, Symbol('UTC')])('that is no text: %o', (timeZone) => {
    expect(scheduled({ at: 'rate(1 hour)', timeZone })).toMatch(
      /schedule\.timeZone is .*; allowed: an IANA name/,
    );
  });

  it.each([
    'UTC',
    'GMT',
    'Etc/UTC',
    'Zulu',
    'EST',
    'EST5EDT',
    'US/Pacific',
    'Asia/Calcutta',
    'Asia/Kolkata',
    'Europe/Kiev',
    'Europe/Kyiv',
    'America/Buenos_Aires',
    'America/Argentina/ComodRivadavia',
    'Etc/GMT-14',
    'NZ-CHAT',
    'W-SU',
    ...Intl.supportedValuesOf('timeZone'),
  ])('of IANA is taken: %s', (timeZone) => {
    const { schedules } = defineJob({ name: 'a', schedule: { at: 'cron(0 3 * * ? *)', timeZone }, work });
    expect(schedules[0]?.timeZone).toBe(timeZone);
  });
});

describe('H3: an option', () => {
  it.each([
    ['shedule', 'schedule'],
    ['schedules', 'schedule'],
    ['Schedule', 'schedule'],
    ['cron', 'schedule'],
    ['rate', 'schedule'],
    ['timeout', 'timeoutMs'],
    ['timeoutms', 'timeoutMs'],
    ['lease', 'leaseMs'],
    ['lockDelay', 'lockDelayMs'],
    ['retry', 'retries'],
    ['catchup', 'catchUp'],
    ['catch_up', 'catchUp'],
    ['overlaps', 'overlap'],
    ['handler', 'work'],
    ['wrok', 'work'],
    ['discription', 'description'],
    ['disabled', 'enabled'],
    ['timeZone', 'schedule'],
  ])('misspelt as %s', (name, meant) => {
    expect(given({ [name]: 1 })).toBe(`job "a": there is no option "${name}"; did you mean ${meant}?`);
  });

  it('that is none, and like none', () => {
    expect(given({ colour: 1 })).toBe(
      `job "a": there is no option "colour"; allowed: ${Object.keys(jobOptions).join(', ')}`,
    );
    expect(given(JSON.parse('{"__proto__": 1}') as object)).toMatch(/no option "__proto__"|"colour"/);
    expect(declared(Object.assign(Object.create({ shedule: 1 }) as object, { name: 'a', work }))).toMatch(
      /"shedule"/,
    );
    expect(given({ [Symbol('x')]: 1 })).toMatch(/no option "Symbol\(x\)"/);
  });

  it.each([
    [
      'timeoutMs',
      'a whole number from 100 to 870000',
      [NaN, Infinity, -Infinity, 1.5, 99, 870_001, 5n, '60000', null, true, [60_000], {}, new Date()],
    ],
    ['leaseMs', 'a whole number from 2000 to 300000', [0, 1_999, 300_001, '8000', null, NaN]],
    ['lockDelayMs', 'a whole number from 0 to 600000', [-1, 600_001, '0', null, NaN, 0.5]],
    ['places', 'a whole number from 1 to 100', [0, 101, '2', null, [2]]],
    ['waitMs', 'a whole number from 0 to 300000', [-1, null, NaN, '0']],
    ['retries', 'a whole number from 0 to 2', [3, -1, '2', null, true]],
    ['startDeadlineMs', 'a whole number from 1000 to 604800000', [0, null, Infinity]],
    ['catchUpLimit', 'a whole number from 1 to 1000', [0, 1_001, null]],
    [
      'overlap',
      'skip, wait, replace, allow',
      ['Skip', 'forbid', null, true, ['skip'], '', 'toString', '__proto__'],
    ],
    ['afterLost', 'rerun, hold', ['Hold', 'retry', null]],
    ['catchUp', 'skip, one, all', ['All', 'latest', null, true, 1]],
    ['enabled', 'true or false', ['false', 0, null, 'no']],
    ['description', 'a text', [null, 5, ['a'], Symbol('a')]],
    ['work', 'an async function', [undefined, null, 'work', {}, function* () {}, async function* () {}]],
    [
      'name',
      'lower-case letters, digits and hyphens, a letter first, at most 40',
      ['', 'A', '1a', 'a b', 'a_b', 'a'.repeat(41), null, 5, ['a'], 'ä', 'a\n', Symbol('a')],
    ],
  ])('%s allows %s, and nothing else', (option, allowed, values) => {
    for (const value of values) expect(given({ [option]: value })).toMatch(`: ${option} is `);
    for (const value of values) expect(given({ [option]: value })).toMatch(`; allowed: ${allowed}`);
  });

  it.each([
    ['overlap', 'Skip', 'did you mean skip?'],
    ['overlap', 'weit', 'did you mean wait?'],
    ['afterLost', 'Hold', 'did you mean hold?'],
    ['timeoutMs', '60000', 'write 60000 without quotes'],
    ['leaseMs', null, 'leave it out for the default'],
  ])('with a cure: %s is %j', (option, value, cure) => {
    expect(given({ [option]: value })).toMatch(new RegExp(`; ${cure.replace('?', '\\?')}$`));
  });

  const circular: Record<string, unknown> = {};
  circular['self'] = circular;
  const revoked = Proxy.revocable({}, {});
  revoked.revoke();
  const hostile = new Proxy(
    {},
    {
      get: () => {
        throw new Error('trap');
      },
      ownKeys: () => {
        throw new Error('trap');
      },
    },
  );
  const strange: unknown[] = [
    Symbol('s'),
    circular,
    hostile,
    revoked.proxy,
    Object.create(null),
    { toString: null },
    {
      toString() {
        throw new Error('no');
      },
    },
    {
      get secret() {
        throw new Error('no');
      },
    },
    {
      get [Symbol.toStringTag]() {
        throw new Error('no');
      },
    },
    new Map([[1, 2]]),
    10n,
    -0.5,
    runInNewContext('new Error("other realm")'),
    'x'.repeat(10_000),
    '\ud800',
    'two\nlines',
    Date,
  ];
  it('is shown in one short line, whatever was given', () => {
    for (const value of strange)
      for (const option of Object.keys(jobOptions)) {
        if (option === 'lock' && typeof value !== 'symbol') continue;
        if (
          (option === 'description' && typeof value === 'string') ||
          (option === 'work' && typeof value === 'function')
        )
          continue;
        const message = given({ [option]: value });
        expect(message).toMatch(/^(job|a job)/);
        expect(message.length).toBeLessThan(500);
        expect(message).not.toMatch(/\n|trap/);
      }
    for (const value of [...strange, undefined, null, 5, 'a', []])
      expect(declared(value)).toMatch(/^(job|a job)/);
    for (const value of strange.filter((one) => typeof one !== 'string'))
      expect(scheduled({ at: value })).toMatch(/^job "a": schedule/);
  });

  it('whose getter throws, says so', () => {
    expect(given(Object.defineProperty({}, 'x', { enumerable: true, get: () => 1 }))).toMatch(
      /no option "x"/,
    );
    const options = {
      name: 'a',
      work,
      get leaseMs(): number {
        throw new Error('no');
      },
    };
    expect(declared(options)).toBe('job "a": leaseMs can’t be read: its getter throws');
  });

  it('of a job without a name', () => {
    expect(declared({ work })).toBe(
      'a job without a name: name is undefined; allowed: lower-case letters, digits and hyphens, a letter first, at most 40',
    );
    expect(declared(undefined)).toMatch(/^a job without a name is undefined; allowed: an object of options/);
  });

  it('that is undefined is as if it were not given', () => {
    const options = Object.fromEntries(Object.keys(jobOptions).map((option) => [option, undefined]));
    const plain = defineJob({ name: 'a', work });
    expect(defineJob({ ...options, name: 'a', work })).toEqual(plain);
    expect(plain).toEqual({
      name: 'a',
      description: '',
      schedules: [],
      timeoutMs: 300_000,
      leaseMs: null,
      lockDelayMs: null,
      lock: 'a',
      ownLocks: new Set(),
      places: 1,
      overlap: 'skip',
      waitMs: 10_000,
      retries: 2,
      afterLost: 'rerun',
      startDeadlineMs: null,
      catchUp: 'skip',
      catchUpLimit: 10,
      enabled: true,
      params: null,
      work,
    });
  });

  it('may be inherited, and is read once', () => {
    let reads = 0;
    const options = Object.create({
      name: 'a',
      work,
      get places() {
        return ++reads;
      },
    }) as JobOptions;
    expect(defineJob(options).places).toBe(1);
    expect(reads).toBe(1);
  });
});

describe('E5: a lock', () => {
  it.each([
    [727361004, 'write 727361004n'],
    [0, 'write 0n'],
    [-5, 'write -5n'],
    [2 ** 53, 'write an integer with an n behind it, such as 42n'],
    [1.5, 'write an integer with an n behind it, such as 42n'],
    [NaN, 'write an integer with an n behind it, such as 42n'],
  ])('given as the number %d', (lock, cure) => {
    expect(given({ lock })).toMatch(`; ${cure}`);
  });

  it.each([
    '',
    'a\u0000b',
    '\ud800',
    'x'.repeat(201),
    null,
    {},
    [],
    ['a'],
    true,
    Symbol('a'),
    Promise.resolve('a'),
    2n ** 63n,
    -(2n ** 63n) - 1n,
  ])('that names none: %o', (lock) => {
    expect(given({ lock })).toMatch(/^job "a": lock is .*; allowed: a name of 1 to 200 characters/);
  });

  it.each(['x', 'x'.repeat(200), 2n ** 63n - 1n, -(2n ** 63n), 0n])('that names one: %o', (lock) => {
    expect(defineJob({ name: 'a', lock, work }).lock).toBe(lock);
  });
});

describe('lockDelayMs', () => {
  it('is 0, or no less than the lease', () => {
    expect(given({ leaseMs: 10_000, lockDelayMs: 9_999 })).toBe(
      'job "a": lockDelayMs is 9999; allowed: 0, or at least the lease, which is 10000',
    );
    for (const lockDelayMs of [0, 10_000, 600_000])
      expect(defineJob({ name: 'a', leaseMs: 10_000, lockDelayMs, work }).lockDelayMs).toBe(lockDelayMs);
    expect(defineJob({ name: 'a', lockDelayMs: 5, work }).lockDelayMs).toBe(5);
  });
});

describe('A2, H3: a registry', () => {
  const job = (name: string, options: Partial<JobOptions> = {}) => defineJob({ name, work, ...options });
  const registered = (...jobs: unknown[]) => refusal(() => defineJobs(jobs as never));

  it.each([
    ['sweep', 'the sweep'],
    ['http', 'the HTTP entry'],
  ])('has no job %s', (name, own) => {
    expect(refusal(() => job(name))).toBe(
      `job "${name}": name is "${name}", which is the name of ${own}; choose another`,
    );
    expect(registered(declareJob({ name, work }))).toBe(
      `a job is named "${name}", which is the name of ${own}; rename it`,
    );
  });

  it('has each name once, and nothing but jobs', () => {
    expect(registered(job('a'), job('a'))).toBe('two jobs are named "a"; rename one');
    for (const other of [undefined, null, {}, { name: 'a', work }, 'a', job])
      expect(registered(job('b'), other)).toMatch(/as number 2; allowed: what defineJob answers$/);
    expect(refusal(() => defineJobs({ a: job('a') } as never))).toMatch(/allowed: a list of jobs$/);
  });

  it.each([
    [{ places: 2 }, { lock: lockKey('report') }],
    [{ places: 2 }, { lock: lockKey('report#1') }],
    [{ places: 2 }, { lock: 'report#1' }],
    [{}, { lock: lockKey('report') }],
    [{ lock: 'shared', places: 3 }, { lock: 'shared#2' }],
    [{ lock: 'shared' }, { lock: lockKey('shared') }],
  ])('has no two locks of one key: %o and %o', (one, other) => {
    for (const jobs of [
      [job('report', one), job('x', other)],
      [job('x', other), job('report', one)],
    ])
      expect(registered(...jobs)).toMatch(/^locks .* and .* have one lock key; rename one$/);
  });

  it('has no lock named like the guard of a slot', () => {
    expect(registered(job('report'), job('x', { lock: 'report@2026-11-29T12:00:00Z' }))).toBe(
      'job "x": lock "report@2026-11-29T12:00:00Z" is kept for a slot of job report; rename it',
    );
  });

  it('lets jobs share a lock that they name alike', () => {
    expect(defineJobs([job('a', { lock: 'shared' }), job('b', { lock: 'shared', places: 2 })]).size).toBe(2);
    expect(defineJobs([job('a', { lock: 5n }), job('b', { lock: 5n })]).size).toBe(2);
    expect(defineJobs([job('a'), job('b', { lock: 'a' })]).size).toBe(2);
    expect(defineJobs([job('a'), job('b', { lock: 'me@example.com' })]).size).toBe(2);
  });
});
