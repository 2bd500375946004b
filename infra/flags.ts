/**
 * The options of a command, declared in a table: how they are read, refused and explained. Each command has `--help`,
 * and says in one line what can't be, before it starts anything.
 */
import { parseArgs } from 'node:util';
import { nearest } from '../src/options.ts';
import { lineOf } from './terminal.ts';

export interface Flag {
  /** What stands for its value in the help; a switch has none. */
  readonly value?: string;
  readonly says: string;
}

export interface Command {
  /** As it is typed, such as `npm start`. */
  readonly name: string;
  readonly says: string;
  readonly flags: Readonly<Record<string, Flag>>;
}

export type Given<C extends Command> = {
  readonly [K in keyof C['flags']]?: C['flags'][K] extends { readonly value: string } ? string : boolean;
};

/** What was typed can't be; settled before anything is started, and said in one line. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** Not an error, but an end all the same: its message is the help. */
class HelpWanted extends Error {
  override readonly name = 'HelpWanted';
}

/** @throws {UsageError} for an option that is none; and for `--help`, which {@link finish} answers */
export function readFlags<const C extends Command>(command: C, args: readonly string[]): Given<C> {
  const { values, tokens } = parsed(command, args);
  if (values['help'] === true) throw new HelpWanted(helpFor(command));
  for (const token of tokens)
    if (token.kind === 'option' && !(token.name in command.flags)) throw stranger(command, token.rawName);
  // Each is of the type that its row has, since parseArgs is strict about the rest.
  return values as Given<C>;
}

function parsed({ name, flags }: Command, args: readonly string[]) {
  const options = Object.fromEntries([
    ...Object.entries(flags).map(([flag, { value }]) => [
      flag,
      { type: value === undefined ? ('boolean' as const) : ('string' as const) },
    ]),
    ['help', { type: 'boolean' as const, short: 'h' }],
  ]) as Record<string, { type: 'boolean' | 'string'; short?: string }>;
  const known = (arg: string) => Object.hasOwn(options, arg.replace(/^--([^=]*).*$/s, '$1'));
  const unknown = args.find((arg) => arg.startsWith('--') && arg !== '--' && !known(arg));
  if (unknown !== undefined && !args.includes('--help')) throw stranger({ name, flags }, unknown);
  try {
    return parseArgs({ args: [...args], options, tokens: true, strict: unknown === undefined });
  } catch (cause) {
    throw new UsageError(`${lineOf(cause).replace(/\.$/, '')}; ${explained(name)}`, { cause });
  }
}

function stranger({ name, flags }: Pick<Command, 'name' | 'flags'>, given: string): UsageError {
  const typed = given.replace(/=.*$/s, '');
  const known = [...Object.keys(flags), 'help'];
  const meant = nearest(
    typed,
    known.map((flag) => [flag, flag]),
  );
  const cure =
    meant === undefined
      ? `known: ${known.map((flag) => `--${flag}`).join(', ')}`
      : `did you mean --${meant}?`;
  return new UsageError(
    `there is no option ${typed}; ${cure}${meant === undefined ? `; ${explained(name)}` : ''}`,
  );
}

function explained(name: string): string {
  return `${name}${name.startsWith('npm') ? ' --' : ''} --help explains them`;
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
  return [`${name} [-- OPTIONS]: ${says}`, '', ...lines].join('\n');
}

/** Says how a command ended, in one line, and sets its exit code: 0 after the help, 2 for what can't be typed, else 1. */
export function finish(command: string, error: unknown): void {
  if (error instanceof HelpWanted) {
    console.log(error.message);
    return;
  }
  console.error(`${command}: ${lineOf(error)}`);
  process.exitCode = error instanceof UsageError ? 2 : 1;
}

/** @throws {UsageError} */
export function wholeFrom(flag: string, given: string, least: number, most: number): number {
  const number = /^\d{1,10}$/.test(given) ? Number(given) : NaN;
  if (number >= least && number <= most) return number;
  throw new UsageError(
    `${flag} is ${JSON.stringify(given)}; allowed: a whole number from ${least} to ${most}`,
  );
}
