/** Measurements as Markdown. Ratios alone: milliseconds are this machine's, and stay in the JSON. */
import type { ColdLine } from './cold.ts';
import type { History, HistoryLine } from './history.ts';
import type { Comparison } from './invocation.ts';
import type { Spread } from './pairs.ts';
import type { Results, Under } from './kept.ts';
import { shown, table } from './markdown.ts';
import { peerTables } from './peer-tables.ts';

function words({ date, pairs, cores, memoryGb, load, versions }: Under): string {
  const software = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
  return `${date}, ${pairs} pairs, ${cores} cores, ${memoryGb} GB, load ${load} when it began; ${software.join(', ')}.\n\n`;
}

export function tablesOf({ flights, invocation, cold, history, ...beside }: Results): string {
  const parts = [
    '# Measured\n\nBy `npm run bench`; [what is measured and how](../bench.md). Medians, quartiles in brackets.\n',
  ];
  if (flights) parts.push(`## Flights\n\n${words(flights.under)}${flightsTable(flights.found)}`);
  if (invocation)
    parts.push(`## Invocation\n\n${words(invocation.under)}${invocationTable(invocation.found)}`);
  if (cold) parts.push(`## Cold\n\n${words(cold.under)}${coldTables(cold.found)}`);
  if (history) parts.push(`## History\n\n${words(history.under)}${historyTables(history.found)}`);
  const peers = peerTables(beside);
  if (peers !== '') parts.push(peers);
  return parts.join('\n');
}

function historyTables({ rows, bytesARun, walBytesARun, lines }: History): string {
  const of = (kind: HistoryLine['kind']) =>
    table(['', 'ratio'], lines.filter((line) => line.kind === kind).map(({ what, ratio }) => [what, shown(ratio)])); // prettier-ignore
  const [long, short] = [rows.long, rows.short].map((count) => count.toLocaleString('en'));
  return (
    `At ${long} runs ÷ at ${short}. A run takes ${bytesARun} bytes of the table and its indexes, and ${walBytesARun} of write-ahead log.\n\n` +
    `From connecting to having closed:\n\n${of('whole')}\nFilters of \`GET /runs\`, each on an open, warm session:\n\n${of('filter')}`
  );
}

function flightsTable(found: NonNullable<Results['flights']>['found']): string {
  const ways = [...new Set(found.map(({ way }) => way))];
  const acts = [...new Set(found.map(({ what }) => what))];
  const count = (way: string, act: string) => found.find((one) => one.way === way && one.what === act)?.roundTrips; // prettier-ignore
  return table(['round trips', ...ways], acts.map((act) => [act, ...ways.map((way) => String(count(way, act) ?? ''))])); // prettier-ignore
}

function invocationTable(found: readonly Comparison[]): string {
  return table(
    ['', 'driver', 'each way', 'ratio'],
    found.map(({ what, driver, latencyMs, ratio }) => [what, driver, `${latencyMs} ms`, shown(ratio)]),
  );
}

function coldTables({
  node,
  bytes,
  lines,
  oldToNew,
  elsewhere = [],
}: NonNullable<Results['cold']>['found']): string {
  const kb = (all: number) => `${Math.round(all / 1024)} KB`;
  const rows = (all: readonly ColdLine[]) => all.map(({ what, ratio }) => [what, shown(ratio)]);
  const sizes = `Code loaded: ${kb(bytes.ours)}, ${kb(bytes.oursWithDriver)} with the driver; bare pg, bundled alike: ${kb(bytes.bare)}. Node ${node}.\n\n`;
  const changed = oldToNew
    ? `\nAn earlier build beside this one, the same processes interleaved:\n\n${table(['', 'ratio'], rows(oldToNew))}`
    : '';
  const others = elsewhere.map(
    (one) =>
      `\nBy Node ${one.node} on ${one.share}, ${one.pairs} pairs:\n\n${table(['', 'ratio'], rows(one.lines))}`,
  );
  return sizes + table(['', 'ratio'], rows(lines)) + others.join('') + changed;
}

/** An earlier build beside this one. */
export function changesOf({ cold }: Results): string {
  const rows = cold?.found.oldToNew?.map(({ what, ratio }) => [what, shown(ratio)]);
  return cold && rows ? `\n${words(cold.under)}${table(['', 'ratio'], rows)}\n` : '';
}

// --- the table of aims --------------------------------------------------------------------------

interface Aim {
  readonly what: string;
  readonly atMost: number;
  readonly today: Spread | undefined;
}

export function figuresOf(results: Results): string {
  const rows = aimsOf(results).map(({ what, atMost, today }) => [
    what,
    `≤ ${atMost}`,
    today === undefined ? 'not measured' : shown(today),
    today === undefined ? '' : verdict(what, today.median, atMost),
  ]);
  const measured = [results.invocation?.under, results.cold?.under].flatMap((under) => under ?? []);
  const when = measured[0] === undefined ? '' : words(measured[0]);
  return `\n${when}${table(['measure', 'aim', 'today', ''], rows)}\n`;
}

function slowest(history: History | undefined): Spread | undefined {
  const filters = history?.lines.filter(({ kind }) => kind === 'filter') ?? [];
  return filters.map(({ ratio }) => ratio).sort((one, other) => other.median - one.median)[0];
}

function verdict(what: string, today: number, atMost: number): string {
  const winner = today > 1 ? 'the bare recipe wins' : 'Cronce wins';
  return `${today <= atMost ? 'reached' : 'not reached'}${what.includes('bare') ? `; ${winner}` : ''}`;
}

function aimsOf({ invocation, cold, history }: Results): Aim[] {
  const seek = (driver: string, latencyMs: number, what: string) =>
    invocation?.found.find((one) => one.driver === driver && one.latencyMs === latencyMs && one.what === what)
      ?.ratio;
  const aims = (driver: string, what: string, limits: readonly (readonly [number, number])[]) =>
    limits.map(([latencyMs, atMost]) => ({
      what: `${what}, ${driver}, ${latencyMs} ms each way`,
      atMost,
      today: seek(driver, latencyMs, what),
    }));
  const chilled = (what: string) => cold?.found.lines.find((line) => line.what === what)?.ratio;
  const first = 'first invocation of a fresh process ÷ bare';
  return [
    ...aims('pg', 'run ÷ bare recipe', [[0, 1.9], [2.5, 1], [5, 0.9], [10, 0.85]]), // prettier-ignore
    ...aims('pg', 'skip ÷ bare skip', [[0, 1.7], [2.5, 0.95], [5, 0.9], [10, 0.85]]), // prettier-ignore
    ...aims('neon', 'run ÷ bare recipe', [[0, 1.6], [5, 0.95]]), // prettier-ignore
    { what: first, atMost: 1.5, today: chilled(first) },
    {
      what: 'import of the scheduled handler with its driver ÷ bare pg',
      atMost: 1.1,
      today: chilled('the same with its driver'),
    },
    ...aims('pg', 'run with one sink ÷ run with the log alone', [[5, 1.12]]),
    {
      what: 'filters of the API at 1 M runs ÷ at 1 k, the slowest',
      atMost: 1.3,
      today: slowest(history?.found),
    },
  ];
}
