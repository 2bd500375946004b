/**
 * A slow second reading of AWS's cron, for tests to compare with. Written from AWS's description, one
 * question at a time ("is this day named?"), and by walking where a formula would do: it shares neither
 * code nor method with src/, so that the two are unlikely to be wrong alike.
 */

const monthNames = 'JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC'.split(' ');
const weekdayNames = 'SUN MON TUE WED THU FRI SAT'.split(' ');
const dayMs = 86_400_000;
const minuteMs = 60_000;
const quarterMs = 15 * minuteMs;
const none: readonly number[] = [];

interface Day {
  readonly year: number;
  readonly month: number;
  readonly date: number;
  /** 1 is Sunday. */
  readonly weekday: number;
}

/** The least occurrence after an instant, or undefined if there is none before the year 2200. */
export function bruteNext(cron: string, zone: string, after: Date): Date | undefined {
  const on = readCron(cron);
  const last = Math.max(after.getTime() + 2 * dayMs, Date.UTC(2199, 11, 31));
  for (let day = startOfDay(after) - dayMs; day <= last; day += dayMs) {
    const due = later(on(day, zone), after);
    // The next day too, so as not to rely on days following each other in order where clocks change.
    if (due.length > 0) return new Date(Math.min(...due, ...later(on(day + dayMs, zone), after)));
  }
  return undefined;
}

/** The greatest occurrence at or before an instant, or undefined if there is none since 1970. */
export function bruteLast(cron: string, zone: string, before: Date): Date | undefined {
  const on = readCron(cron);
  for (let day = startOfDay(before) + dayMs; day >= -dayMs; day -= dayMs) {
    const due = on(day, zone);
    const past = due.length === 0 ? due : due.filter((instant) => instant <= before.getTime());
    if (past.length > 0) return new Date(Math.max(...past));
  }
  return undefined;
}

function later(instants: readonly number[], after: Date): readonly number[] {
  return instants.length === 0 ? instants : instants.filter((instant) => instant > after.getTime());
}

function startOfDay(at: Date): number {
  return Math.floor(at.getTime() / dayMs) * dayMs;
}

/** A function from a calendar day (its midnight, as if in UTC) to the instants due on it in a zone. */
function readCron(cron: string): (day: number, zone: string) => readonly number[] {
  const [minutes = '', hours = '', dayOfMonth = '', month = '', dayOfWeek = '', year = ''] = cron
    .toUpperCase()
    .split(' ');
  const years = members(year, 1970, 2199, []);
  const months = members(month, 1, 12, monthNames);
  const namesDay = dayOfWeek === '?' ? dateReader(dayOfMonth) : weekdayReader(dayOfWeek);
  const times = [...members(hours, 0, 23, [])].flatMap((hour) =>
    [...members(minutes, 0, 59, [])].map((minute) => hour * 60 + minute),
  );
  return (dayStart, zone) => {
    const day = allDays[dayStart / dayMs + 1];
    if (day === undefined || !years.has(day.year) || !months.has(day.month) || !namesDay(day)) return none;
    if (zone === 'UTC') return times.map((time) => dayStart + time * minuteMs);
    const shown = firstShown(dayStart, zone);
    return times.map((time) => shown.get(time)).filter((instant) => instant !== undefined);
  };
}

/** Every day from the end of 1969 to the start of 2200, made once: a search may ask for all of them. */
const allDays: readonly Day[] = Array.from({ length: (Date.UTC(2200, 0, 2) + dayMs) / dayMs }, (_, i) => {
  const at = new Date((i - 1) * dayMs);
  return {
    year: at.getUTCFullYear(),
    month: at.getUTCMonth() + 1,
    date: at.getUTCDate(),
    weekday: at.getUTCDay() + 1,
  };
});

/** The values that a field names. */
function members(text: string, least: number, most: number, names: readonly string[]): ReadonlySet<number> {
  const value = (word: string) => (names.includes(word) ? names.indexOf(word) + least : Number(word));
  const found = new Set<number>();
  for (const item of text.split(',')) {
    const [range = '', step = '1'] = item.split('/');
    const [from = '', to] = range.split('-');
    const first = range === '*' ? least : value(from);
    const end = to !== undefined ? value(to) : range === '*' || item.includes('/') ? most : first;
    // Walk on from the first to the end, around the top if need be, and keep every step-th.
    for (let at = first, walked = 0; ; at = at === most ? least : at + 1, walked += 1) {
      if (walked % Number(step) === 0) found.add(at);
      if (at === end) break;
    }
  }
  return found;
}

function dateReader(text: string): (day: Day) => boolean {
  if (text === 'L') return (day) => day.date === Math.max(...datesOf(day));
  if (text === 'LW') return (day) => day.date === Math.max(...workingDatesOf(day));
  if (text.endsWith('W')) {
    const target = Number(text.slice(0, -1));
    return (day) => datesOf(day).includes(target) && day.date === nearest(target, workingDatesOf(day));
  }
  const dates = members(text, 1, 31, []);
  return (day) => dates.has(day.date);
}

function weekdayReader(text: string): (day: Day) => boolean {
  const weekdayOf = (word: string) => [...members(word, 1, 7, weekdayNames)][0];
  if (text === 'L') return (day) => day.weekday === 7;
  if (text.endsWith('L')) {
    const weekday = weekdayOf(text.slice(0, -1));
    return (day) => day.weekday === weekday && !datesOf(day).includes(day.date + 7);
  }
  if (text.includes('#')) {
    const [word = '', nth] = text.split('#');
    const weekday = weekdayOf(word);
    return (day) => day.weekday === weekday && countUpTo(day) === Number(nth);
  }
  const weekdays = members(text, 1, 7, weekdayNames);
  return (day) => weekdays.has(day.weekday);
}

/** How many days of this weekday the month has had, this one included. */
function countUpTo({ date }: Day): number {
  let count = 0;
  for (let at = date; at >= 1; at -= 7) count += 1;
  return count;
}

const allDates = Array.from({ length: 31 }, (_, i) => i + 1);
const datesOf = byMonth((year, month) =>
  allDates.filter((date) => new Date(Date.UTC(year, month - 1, date)).getUTCMonth() === month - 1),
);
const workingDatesOf = byMonth((year, month) =>
  datesOf({ year, month }).filter((date) => {
    const weekday = new Date(Date.UTC(year, month - 1, date)).getUTCDay();
    return weekday >= 1 && weekday <= 5;
  }),
);

function byMonth<T>(find: (year: number, month: number) => T): (day: Pick<Day, 'year' | 'month'>) => T {
  const found = new Map<number, T>();
  return ({ year, month }) => {
    const key = year * 12 + month;
    const value = found.get(key) ?? find(year, month);
    found.set(key, value);
    return value;
  };
}

function nearest(target: number, dates: readonly number[]): number | undefined {
  return [...dates].sort((a, b) => Math.abs(a - target) - Math.abs(b - target))[0];
}

const shownCache = new Map<string, ReadonlyMap<number, number>>();

/**
 * For each minute of a local day that the clocks show at all, the first instant at which they do. Reads
 * the clock at every quarter of an hour around the day: since 1973 no zone has changed at another time.
 */
function firstShown(dayStart: number, zone: string): ReadonlyMap<number, number> {
  const key = `${zone} ${dayStart}`;
  const known = shownCache.get(key);
  if (known !== undefined) return known;
  const shown = new Map<number, number>();
  for (
    let quarter = dayStart - 16 * 4 * quarterMs;
    quarter < dayStart + 40 * 4 * quarterMs;
    quarter += quarterMs
  ) {
    const wall = wallAt(quarter, zone);
    for (let minute = 0; minute < 15; minute += 1) {
      const time = (wall - dayStart) / minuteMs + minute;
      if (time >= 0 && time < 1440 && !shown.has(time)) shown.set(time, quarter + minute * minuteMs);
    }
  }
  shownCache.set(key, shown);
  return shown;
}

const formats = new Map<string, Intl.DateTimeFormat>();

/** What the wall shows at an instant, as epoch milliseconds of the same reading in UTC. */
function wallAt(instant: number, zone: string): number {
  let format = formats.get(zone);
  if (format === undefined) {
    // Swedish writes dates as ISO 8601 does.
    format = new Intl.DateTimeFormat('sv-SE', { timeZone: zone, dateStyle: 'short', timeStyle: 'medium' });
    formats.set(zone, format);
  }
  return Date.parse(`${format.format(instant).replace(' ', 'T')}Z`);
}
