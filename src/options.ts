import { inspect } from 'node:util';

/**
 * Options that are declared in a table: what is allowed, what is decided where nothing is given, and how the given is
 * read. Whoever checks, documents or shows an option reads the same row. Whatever is handed in here, of any type and
 * however broken, ends in a value of the row's type or in a JobError that says which option, what was given and what
 * is allowed.
 */

/** An option of a job that can't be, with the cure. */
export class JobError extends Error {
  override readonly name: string = 'JobError';
}

/** One row: an option that comes to a T. */
export interface Option<T> {
  /** In words, for messages and for people. */
  readonly allowed: string;
  /** What is decided where the option isn't given. Absent where it must be. */
  readonly byDefault?: T;
  /** What others call it, so that a message can point here. */
  readonly alias?: readonly string[];
  /** Answers a Refusal for what can't be; may itself throw a JobError for what is wrong inside. */
  readonly read: (given: unknown, place: Place) => T | Refusal;
}

export type Options<T> = { readonly [K in keyof T]-?: Option<T[K]> };

/** An answer of {@link Option.read}: the given is none of what is allowed. */
export class Refusal {
  /** What to write instead, where it can be told. */
  readonly cure: string | undefined;
  constructor(cure?: string) {
    this.cure = cure;
  }
}

/** Where an option stands, for messages: `job "a"`, `schedule[1].`. */
export interface Place {
  readonly owner: string;
  readonly path: string;
}

/** Reads each option once, in the order of the table. @throws {JobError} */
export function readOptions<T extends object>(table: Options<T>, given: unknown, place: Place): T {
  const rows = Object.entries<Option<unknown>>(table);
  if (typeof given !== 'object' || given === null || isList(given))
    throw new JobError(`${label(place)} is ${show(given)}; allowed: an object of options, ${namesOf(rows)}`);
  for (const name of namesIn(given, place))
    if (!Object.hasOwn(table, name)) throw stranger(name, rows, place);
  // The rows are those of T, and each comes to its own type.
  return Object.fromEntries(rows.map(([name, row]) => [name, decide(name, row, given, place)])) as T;
}

/** A revoked proxy can't even be asked for this. */
function isList(given: object): boolean {
  try {
    return Array.isArray(given);
  } catch {
    return false;
  }
}

type Rows = readonly (readonly [name: string, row: Option<unknown>])[];

function decide(name: string, row: Option<unknown>, options: object, place: Place): unknown {
  const given = valueOf(options, name, place);
  if (given === undefined && 'byDefault' in row) return row.byDefault;
  const decided = readRow(row, given, { ...place, path: place.path + name });
  if (!(decided instanceof Refusal)) return decided;
  const cures = [
    decided.cure,
    given === null && 'byDefault' in row ? 'leave it out for the default' : undefined,
  ];
  throw refusal({ ...place, path: place.path + name }, given, [row.allowed, ...cures]);
}

/** What is given may be a proxy, or have getters, that throw at any look. */
function readRow(row: Option<unknown>, given: unknown, place: Place): unknown {
  try {
    return row.read(given, place);
  } catch (error) {
    if (error instanceof JobError) throw error;
    throw new JobError(`${label(place)} is ${show(given)}, which can’t be read; allowed: ${row.allowed}`, {
      cause: error,
    });
  }
}

/** The message that all refusals share. */
export function refusal(place: Place, given: unknown, allowed: readonly (string | undefined)[]): JobError {
  const words = allowed.filter((word) => word !== undefined).join('; ');
  return new JobError(`${label(place)} is ${show(given)}; allowed: ${words}`);
}

function valueOf(options: object, name: string, place: Place): unknown {
  try {
    return Reflect.get(options, name);
  } catch (cause) {
    throw new JobError(`${label({ ...place, path: place.path + name })} can’t be read: its getter throws`, {
      cause,
    });
  }
}

/** Also inherited ones, which are options as well; but not what every object has. */
function namesIn(options: object, place: Place): string[] {
  try {
    const names: string[] = [];
    for (const name in options)
      if (Object.hasOwn(options, name) || !(name in Object.prototype)) names.push(name);
    const symbols = Object.getOwnPropertySymbols(options).map((symbol) => symbol.toString());
    return [...names, ...symbols];
  } catch (cause) {
    throw new JobError(`${label(place)} can’t be read`, { cause });
  }
}

function stranger(name: string, rows: Rows, place: Place): JobError {
  const meant = nearest(
    name,
    rows.flatMap(([known, { alias = [] }]) => [known, ...alias].map((word) => [word, known] as const)),
  );
  const cure = meant === undefined ? `allowed: ${namesOf(rows)}` : `did you mean ${meant}?`;
  const kind = place.path === '' ? 'option' : `option of ${place.path.replace(/\.$/, '')}`;
  return new JobError(`${place.owner}: there is no ${kind} ${show(name)}; ${cure}`);
}

function namesOf(rows: Rows): string {
  return rows.map(([name]) => name).join(', ');
}

function label({ owner, path }: Place): string {
  return path === '' ? owner : `${owner}: ${path.replace(/\.$/, '')}`;
}

// --- rows ---------------------------------------------------------------------------------------

export function whole<const D>(least: number, most: number, byDefault: D): Option<number | D> {
  return {
    allowed: `a whole number from ${least} to ${most}`,
    byDefault,
    // Zero has no sign here.
    read: (given) =>
      isWhole(given) && given >= least && given <= most ? given + 0 : new Refusal(numeral(given)),
  };
}

function isWhole(given: unknown): given is number {
  return typeof given === 'number' && Number.isInteger(given);
}

function numeral(given: unknown): string | undefined {
  return typeof given === 'string' && /^\d{1,15}$/.test(given) ? `write ${given} without quotes` : undefined;
}

export function oneOf<const T extends string>(words: readonly T[], byDefault: T): Option<T> {
  return {
    allowed: words.join(', '),
    byDefault,
    read: (given) => {
      const found = words.find((word) => word === given);
      if (found !== undefined) return found;
      const meant =
        typeof given === 'string'
          ? nearest(
              given,
              words.map((word) => [word, word]),
            )
          : undefined;
      return new Refusal(meant && `did you mean ${meant}?`);
    },
  };
}

export function flag(byDefault: boolean): Option<boolean> {
  return {
    allowed: 'true or false',
    byDefault,
    read: (given) => (typeof given === 'boolean' ? given : new Refusal()),
  };
}

// --- words --------------------------------------------------------------------------------------

/** A value in one short line, whatever it is. Runs nothing of it: no getter, no toString, no trap of a proxy. */
export function show(given: unknown): string {
  try {
    const text =
      typeof given === 'string'
        ? JSON.stringify(given.slice(0, 200))
        : inspect(given, {
            depth: 1,
            breakLength: Infinity,
            compact: true,
            maxArrayLength: 5,
            maxStringLength: 40,
            customInspect: false,
            showProxy: true,
          });
    const line = text.replaceAll(/\s+/g, ' ');
    return (line.length > 120 ? `${line.slice(0, 119)}…` : line).toWellFormed();
  } catch {
    return `${typeof given === 'object' ? 'an object' : 'a value'} that can’t be shown`;
  }
}

/** What a misspelt word most likely stands for: one that differs by case, by a slip or two, or goes on longer. */
export function nearest(
  given: string,
  known: readonly (readonly [word: string, meant: string])[],
): string | undefined {
  const plain = (word: string) => word.toLowerCase().replaceAll(/[^a-z]/g, '');
  if (given.length > 40) return undefined;
  const ranked = known
    .map(([word, meant]) => ({ meant, slips: slipsBetween(plain(given), plain(word)), word: plain(word) }))
    .filter(
      ({ slips, word }) =>
        slips <= Math.min(2, Math.floor(word.length / 2)) ||
        (plain(given).length >= 3 && word.startsWith(plain(given))),
    )
    .sort((one, other) => one.slips - other.slips);
  return ranked[0]?.meant;
}

/** Letters to put in, leave out or replace, and neighbours to swap, which is one slip (Damerau's distance). */
function slipsBetween(one: string, other: string): number {
  const rows: number[][] = [Array.from({ length: other.length + 1 }, (_, j) => j)];
  const at = (i: number, j: number) => rows[i]?.[j] ?? Infinity;
  for (let i = 1; i <= one.length; i++) {
    rows.push([i]);
    for (let j = 1; j <= other.length; j++) {
      const swapped =
        one[i - 1] === other[j - 2] && one[i - 2] === other[j - 1] ? at(i - 2, j - 2) + 1 : Infinity;
      const replaced = at(i - 1, j - 1) + (one[i - 1] === other[j - 1] ? 0 : 1);
      rows[i]?.push(Math.min(at(i - 1, j) + 1, at(i, j - 1) + 1, replaced, swapped));
    }
  }
  return at(one.length, other.length);
}
