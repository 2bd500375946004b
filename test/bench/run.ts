/** `npm run bench [-- PART…] [--pairs N] [--old FOLDER] [--rows N]`: measures, and writes docs/bench/ anew. */
import { finish, readFlags, UsageError } from '../../infra/cli/flags.ts';
import { cold } from './cold.ts';
import { flights } from './flights.ts';
import { history } from './history.ts';
import { invocation } from './invocation.ts';
import type { Results } from './kept.ts';
import { amongPeers } from './peers.ts';
import { circumstances, keep, underPeers } from './results.ts';
import { peerTables } from './peer-tables.ts';
import { startStand, type Stand } from './stand.ts';

const parts = [
  'flights',
  'invocation',
  'cold',
  'history',
  'peers',
  'recovery',
  'late',
  'storm',
  'long',
] as const;
type Part = (typeof parts)[number];

const command = {
  name: 'npm run bench',
  says: `measures ${parts.join(', ')}, or what is named of them, and writes docs/bench/`,
  flags: {
    pairs: { value: 'N', says: 'how many interleaved pairs, 4 to 1000 (40)' },
    old: { value: 'FOLDER', says: 'an earlier .build, beside which cold starts are measured too' },
    rows: { value: 'N', says: 'how many runs the long history has, 10000 to 99999999 (1000000)' },
    dry: { says: 'writes nothing' },
    redraw: { says: 'measures nothing: tables and plot anew from what docs/bench/results.json holds' },
  },
} as const;

interface Wanted {
  readonly names: readonly Part[];
  readonly pairs: number;
  readonly rows: number;
  readonly old: string | undefined;
  readonly dry: boolean;
  readonly redraw: boolean;
}

function wanted(args: readonly string[]): Wanted {
  const isPart = (arg: string): arg is Part => parts.some((part) => part === arg);
  const [named, rest] = [args.filter(isPart), args.filter((arg) => !isPart(arg))];
  const { pairs = '40', rows = '1000000', old, dry = false, redraw = false } = readFlags(command, rest);
  if (!/^\d+$/.test(pairs) || Number(pairs) < 4 || Number(pairs) > 1_000)
    throw new UsageError(`--pairs is ${JSON.stringify(pairs)}; allowed: 4 to 1000`);
  if (!/^[1-9]\d{4,7}$/.test(rows))
    throw new UsageError(`--rows is ${JSON.stringify(rows)}; allowed: 10000 to 99999999`);
  return {
    names: named.length > 0 ? named : parts,
    pairs: Number(pairs),
    rows: Number(rows),
    old,
    dry,
    redraw,
  };
}

async function measure(stand: Stand, name: Part, { pairs, rows, old }: Wanted): Promise<Results> {
  const under = circumstances(stand.version, pairs);
  switch (name) {
    case 'flights':
      return { flights: { under, found: await flights(stand) } };
    case 'invocation':
      return { invocation: { under, found: await invocation(stand, pairs) } };
    case 'cold':
      return { cold: { under, found: await cold(stand, pairs, old) } };
    case 'history':
      return { history: { under, found: await history(stand, pairs, rows) } };
    case 'peers':
      return {
        peers: { under: await underPeers(under), found: await amongPeers(stand, name, pairs, [0, 5]) },
      };
    case 'recovery':
      return { recovery: { under: await underPeers(under), found: await amongPeers(stand, name, pairs) } };
    case 'late':
      return { late: { under: await underPeers(under), found: await amongPeers(stand, name, pairs) } };
    case 'storm':
      return { storm: { under: await underPeers(under), found: await amongPeers(stand, name, pairs) } };
    case 'long':
      return { long: { under: await underPeers(under), found: await amongPeers(stand, name, pairs) } };
  }
}

/** One after the other, but for two that do nothing but wait. */
function together(names: readonly Part[]): readonly (readonly Part[])[] {
  const waiting = (name: Part) => name === 'recovery' || name === 'late';
  const waits = names.filter(waiting);
  const busy = names.filter((name) => !waiting(name)).map((name) => [name]);
  return waits.length === 0 ? busy : [...busy, waits];
}

async function main(): Promise<void> {
  const asked = wanted(process.argv.slice(2));
  if (asked.redraw) return keep({});
  const stand = await startStand();
  try {
    for (const names of together(asked.names)) {
      const measured = await Promise.all(names.map(async (name) => measure(stand, name, asked)));
      const results = measured.reduce((all, one) => ({ ...all, ...one }), {});
      print(results);
      if (!asked.dry) await keep(results);
    }
  } finally {
    await stand.stop();
  }
}

function print(results: Results): void {
  const { flights: counted, invocation: compared, cold: chilled, history: kept } = results;
  for (const { way, what, roundTrips } of counted?.found ?? []) console.log(`${way}: ${what}: ${roundTrips}`);
  for (const { driver, latencyMs, what, ratio } of compared?.found ?? [])
    console.log(`${driver}, ${latencyMs} ms: ${what}: ${ratio.median} (${ratio.quartiles.join('–')})`);
  for (const { what, ratio } of [
    ...(chilled?.found.lines ?? []),
    ...(chilled?.found.oldToNew ?? []),
    ...(kept?.found.lines ?? []),
  ])
    console.log(`${what}: ${ratio.median} (${ratio.quartiles.join('–')})`);
  console.log(peerTables(results));
}

main().catch((error: unknown) => finish('bench', error));
