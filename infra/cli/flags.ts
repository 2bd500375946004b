/**
 * The options of a command, declared in a table: how they are read, refused and explained. Each command has `--help`,
 * and says in one line what can't be, before it starts anything.
 */
import { parseArgs, type ParseArgsConfig } from 'node:util';
import { nearest } from '../../src/options.ts';
import { lineOf } from '../terminal.ts';

export interface Flag {
  /** What stands for its value in the help; a switch has none. */
  readonly value?: string;
  /** It may be given several times. */
  readonly many?: true;
  readonly says: string;
}

export interface Command {
  /** As it is typed, such as `npm start`. */
  readonly name: string;
  readonly says: string;
  readonly flags: Readonly<Record<string, Flag>>;
}

export type Given<C extends Command> = {
  readonly [K in keyof C['flags']]?: C['flags'][K] extends { readonly many: true }
    ? readonly string[]
    : C['flags'][K] extends { readonly value: string }
      ? string
      : boolean;
};

/** In a checkout the commands are scripts of its package.json; where Cronce is installed, they are those of `cronce`. */
const isInstalled = !import.meta.url.endsWith('.ts');

/** How a command is typed here. */
export function asTyped(script: string, command: string): string {
  return isInstalled ? command : script;
}

/** npm keeps options for itself that are not set apart. */
export function beforeOptions(name: string): string {
  return isScript(name) ? `${name} --` : name;
}

function isScript(name: string): boolean {
  return name.startsWith('npm ');
}

/** What was typed can't be; settled before anything is started, and said in one line. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** Not an error, but an end all the same: its message is the help. */
class HelpWanted extends Error {
  override readonly name = 'HelpWanted';
}

/** @throws {UsageError} for an option that is none; and for `--help`, whatever else is given, which {@link finish} answers */
export function readFlags<const C extends Command>(command: C, args: readonly string[]): Given<C> {
  const known = [...Object.keys(command.flags), 'help'];
  const isKnown = (arg: string) => known.includes(arg.replace(/^--([^=]*).*$/s, '$1'));
  const unknown = args.find((arg) => /^--./.test(arg) && !isKnown(arg));
  if (args.includes('--help') || args.includes('-h')) throw new HelpWanted(helpFor(command));
  if (unknown !== undefined) throw stranger(command.name, known, unknown);
  try {
    // Each is of the type that its row has: parseArgs is strict.
    return parseArgs({ args: [...args], options: optionsOf(command) }).values as Given<C>;
  } catch (cause) {
    throw new UsageError(`${lineOf(cause).replace(/\.$/, '')}; ${explained(command.name)}`, { cause });
  }
}

function optionsOf({ flags }: Command): NonNullable<ParseArgsConfig['options']> {
  const option = ({ value, many }: Flag) =>
    value === undefined ? { type: 'boolean' as const } : { type: 'string' as const, multiple: many === true };
  return Object.fromEntries(Object.entries(flags).map(([name, flag]) => [name, option(flag)]));
}

function stranger(command: string, known: readonly string[], given: string): UsageError {
  const typed = given.replace(/=.*$/s, '');
  const meant = nearest(
    typed,
    known.map((flag) => [flag, flag]),
  );
  const cure =
    meant === undefined
      ? `known: ${known.map((flag) => `--${flag}`).join(', ')}; ${explained(command)}`
      : `did you mean --${meant}?`;
  return new UsageError(`there is no option ${typed}; ${cure}`);
}

function explained(name: string): string {
  return `${beforeOptions(name)} --help explains them`;
}

function helpFor({ name, says, flags }: Command): string {
  const rows = [
    ...Object.entries(flags).map(([flag, { value, says: words }]) => [
      `--${flag}${value === undefined ? '' : ` ${value}`}`,
      words,
    ]),
    ['--help', 'explains them'],
  ];
  const width = Math.max(...rows.map(([flag = '']) => flag.length));
  const lines = rows.map(([flag = '', words = '']) => `  ${flag.padEnd(width)}  ${words}`);
  return [`${name} ${isScript(name) ? '[-- OPTIONS]' : '[OPTIONS]'}: ${says}`, '', ...lines].join('\n');
}

/** Says how a command ended, in one line, and sets its exit code: 0 after the help, 2 for what can't be typed, else 1. */
export function finish(command: string, error: unknown): number {
  const code = error instanceof HelpWanted ? 0 : error instanceof UsageError ? 2 : 1;
  if (error instanceof HelpWanted) console.log(error.message);
  else console.error(`${command}: ${lineOf(error)}`);
  process.exitCode = code;
  return code;
}

/** @throws {UsageError} */
export function wholeFrom(flag: string, given: string, least: number, most: number): number {
  const number = /^\d{1,10}$/.test(given) ? Number(given) : NaN;
  if (number >= least && number <= most) return number;
  throw new UsageError(
    `${flag} is ${JSON.stringify(given)}; allowed: a whole number from ${least} to ${most}`,
  );
}
