#!/usr/bin/env node
/** The command `cronce`; each of its commands has a file, which is loaded when it is called. */
import { typed } from '../../src/postgres/errors.ts';
import { nearest } from '../../src/options.ts';
import { visible } from '../terminal.ts';
import { asTyped, finish, UsageError } from './flags.ts';

interface Entry {
  /** How its errors begin. */
  readonly label: string;
  readonly says: string;
  /** Answers its exit code. */
  readonly run: (args: readonly string[]) => Promise<number>;
}

const commands: Readonly<Record<string, Entry>> = {
  init: {
    label: 'cronce init',
    says: 'writes functions, a first job and its test, serverless.yml; touches nothing that is there',
    run: async (args) => (await import('./init.ts')).init(args),
  },
  dev: {
    label: asTyped('npm start', 'cronce dev'),
    says: 'the whole coordinator on this machine: database, schedules firing, HTTP and page',
    run: async (args) => (await import('./dev.ts')).dev(args),
  },
  duplicates: {
    label: asTyped('duplicates', 'cronce duplicates'),
    says: 'delivers one slot of a job many times at once, and shows what became of each',
    run: async (args) => (await import('./duplicates.ts')).duplicates(args),
  },
  migrate: {
    label: asTyped('migrate', 'cronce migrate'),
    says: 'brings the schema cronce of DATABASE_URL up to date',
    run: async (args) => (await import('./migrate.ts')).migrate(args),
  },
  build: {
    label: asTyped('build', 'cronce build'),
    says: 'bundles the functions, as packaging and dev do by themselves',
    run: async (args) => (await import('./build.ts')).build(args),
  },
};

async function main([name = '--help', ...args]: readonly string[]): Promise<void> {
  if (name === '--help' || name === '-h') {
    console.log(help());
    return;
  }
  const entry = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (entry === undefined) return void finish('cronce', stranger(name));
  try {
    process.exitCode = await entry.run(args);
  } catch (error) {
    if (isAbort(error)) process.exitCode = 130;
    else finish(entry.label, forPeople(error));
  }
}

function help(): string {
  const width = Math.max(...Object.keys(commands).map(({ length }) => length));
  const lines = Object.entries(commands).map(([name, { says }]) => `  ${name.padEnd(width)}  ${says}`);
  return ['cronce COMMAND [OPTIONS]', '', ...lines, '', 'cronce COMMAND --help explains its options.'].join(
    '\n',
  );
}

function stranger(name: string): UsageError {
  const known = Object.keys(commands);
  const meant = nearest(
    name,
    known.map((one) => [one, one]),
  );
  const cure = meant === undefined ? `known: ${known.join(', ')}` : `did you mean ${meant}?`;
  return new UsageError(`there is no command ${visible(name)}; ${cure}`);
}

/** Stopped by Ctrl-C before it had begun. */
function isAbort(error: unknown): boolean {
  return error instanceof Error && error.name === 'AbortError';
}

/** What a driver says comes with its meaning and cure; what is ours is made to be read. */
const ours =
  /^(BuildError|DeploymentError|JobError|Local\w*Error|LockNameError|MigrationError|OfflineError|ProjectError|RelayError|SettingsError|UsageError|HelpWanted)$/;

function forPeople(error: unknown): unknown {
  return error instanceof Error && ours.test(error.name) ? error : typed(error);
}

await main(process.argv.slice(2));
