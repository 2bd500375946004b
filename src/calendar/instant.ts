/** Years of a schedule: the bounds of AWS's cron expressions. */
const [firstYear, lastYear] = [1970, 2199];

/**
 * A time as ISO 8601 writes it in full, with its zone as `Z` or `±hh:mm`; undefined for anything else. Date alone would
 * read a bare "2" as a year, take 03/04 for a day of either March or April, take a time without a zone for this
 * machine's, and the 30th of February for the 2nd of March. Years 1970 to 2199, as in a schedule.
 */
export function instantOf(text: unknown): Date | undefined {
  if (typeof text !== 'string') return undefined;
  const [shaped, day] =
    /^(\d{4}-\d\d-\d\d)T(?:[01]\d|2[0-3]):\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)$/.exec(text) ?? [];
  if (shaped === undefined || day === undefined || !isDay(day)) return undefined;
  const instant = new Date(shaped);
  // NaN lies between no years.
  const year = instant.getUTCFullYear();
  return year >= firstYear && year <= lastYear ? instant : undefined;
}

function isDay(day: string): boolean {
  const midnight = new Date(day);
  return !Number.isNaN(midnight.getTime()) && midnight.toISOString().startsWith(day);
}

/** Null is no bound. */
export function laterOf(one: Date, other: Date | null): Date {
  return other !== null && other > one ? other : one;
}

/** Null is no bound. */
export function earlierOf(one: Date, other: Date | null): Date {
  return other !== null && other < one ? other : one;
}
