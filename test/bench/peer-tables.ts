/** What was measured beside peers, as Markdown. */
import type { PeerResults, UnderPeers } from './kept.ts';
import { shown, table } from './markdown.ts';
import { ratio } from './pairs.ts';
import {
  faults,
  lateAtS,
  type Fault,
  type Lates,
  type Peered,
  type Price,
  type Prices,
  type Recoveries,
  type Storm,
  type Storms,
  type Longs,
} from './peers.ts';

export function peerTables({ peers, recovery, late, storm, long }: PeerResults): string {
  const parts: string[] = [];
  if (peers) parts.push(`## Peers\n\n${circumstances(peers.under, true)}${priceTables(peers.found)}`);
  if (recovery) parts.push(`## Recovery\n\n${circumstances(recovery.under)}${recoveryTable(recovery.found)}`);
  if (late) parts.push(`## Late\n\n${circumstances(late.under)}${lateTable(late.found)}`);
  if (storm) parts.push(`## Storm\n\n${circumstances(storm.under)}${stormTables(storm.found)}`);
  if (long) parts.push(`## Long\n\n${circumstances(long.under)}${longTable(long.found)}`);
  return parts.join('\n');
}

/** Pairs there are of what is compared again and again. */
function circumstances(
  { date, pairs, cores, memoryGb, load, versions }: UnderPeers,
  inPairs = false,
): string {
  const software = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
  const counted = inPairs ? `${pairs} pairs, ` : '';
  return `${date}, ${counted}${cores} cores, ${memoryGb} GB, load ${load} when it began; ${software.join(', ')}.\n\n`;
}

function priceTables({ peers, found }: Prices): string {
  const lengths = [...new Set(found.map(({ latencyMs }) => latencyMs))];
  const head = ['', ...lengths.flatMap((ms) => [`run, ${ms} ms`, `skip, ${ms} ms`]), 'wins over Cronce'];
  const rows = peers.map((peer) => {
    const { name } = peer;
    const of = (latencyMs: number, what: Price['what']) => found.find((one) => one.peer === name && one.latencyMs === latencyMs && one.what === what); // prettier-ignore
    const cells = lengths.flatMap((ms) => [of(ms, 'run'), of(ms, 'skip')]);
    return rowOf(peer, [...cells.map((cell) => (cell ? shown(cell.toBare) : '')), wins(cells)]);
  });
  return `Time ÷ the bare recipe’s, by the latency each way.\n\n${table(head, rows)}\n${setUps(peers)}`;
}

/** Where it takes less time than ours does. */
function wins(cells: readonly (Price | undefined)[]): string {
  const won = cells.filter((cell) => cell !== undefined && cell.toOurs.median < 1);
  return won
    .map((cell) => `${cell?.what} at ${cell?.latencyMs} ms (${cell?.toOurs.median.toFixed(2)})`)
    .join(', ');
}

function setUps(peers: readonly Peered[]): string {
  const rows = peers.map(({ name, on, resident, setUp }) => [
    name,
    on,
    resident ? 'a resident process' : '',
    setUp,
  ]);
  return table(['', 'on', 'needs', 'set up'], rows);
}

/** A peer's cells, or why it has none. */
function rowOf({ name, absent }: Peered, cells: readonly string[]): readonly string[] {
  return absent === undefined
    ? [name, ...cells]
    : [name, `not measured: ${absent}`, ...cells.slice(1).map(() => '')];
}

function recoveryTable(all: Recoveries): string {
  const rows = all.peers.map((peer) =>
    rowOf(
      peer,
      faults.map((fault) => recoveredIn(all, peer.name, fault)),
    ),
  );
  return table(['until the slot’s work begins again', ...faults], rows);
}

function recoveredIn({ found, patienceS }: Recoveries, name: string, fault: Fault): string {
  const one = found.find((recovery) => recovery.peer === name && recovery.fault === fault);
  if (one === undefined) return '';
  return one.seconds === null ? `not within ${patienceS} s` : `${one.seconds.toFixed(1)} s`;
}

function lateTable({ peers, found }: Lates): string {
  const again = (name: string) => found.find(({ peer }) => peer === name)?.ranAgainAtS ?? [];
  const rows = peers.map((peer) => {
    const atS = again(peer.name);
    return rowOf(peer, [
      `${atS.length} of ${lateAtS.length}`,
      ...lateAtS.map((at) => (atS.includes(at) ? 'ran again' : '–')),
    ]);
  });
  return table(['', 'double runs', ...lateAtS.map((at) => `after ${at} s`)], rows);
}

const thousands = (value: number): string => value.toLocaleString('en');

function stormTables(storms: Storms): string {
  const all = thousands(storms.deliveries);
  const rounds = storms.found[0]?.rounds.length ?? 0;
  return (
    `One slot, ${all} deliveries at once${rounds > 1 ? `, ${rounds} rounds with a slot each` : ''}:\n\n${stormTable(storms, 'one slot')}\n` +
    `${all} jobs due within a minute, one delivery each, all contestants in the same minute:\n\n${stormTable(storms, 'a minute')}\n` +
    `What was thrown:\n\n${thrownList(storms.found)}`
  );
}

function stormTable({ found }: Storms, what: Storm['what']): string {
  const mine = found.filter((one) => one.what === what);
  const bare = mine.find(({ peer, road }) => peer === 'bare recipe' && road === 'straight');
  const times = (of: keyof Storm['rounds'][number], { rounds }: Storm) => {
    const spread = ratio(
      rounds.map((round) => round[of]),
      bare?.rounds.map((round) => round[of]) ?? [],
    );
    return rounds.length > 1 ? shown(spread) : spread.median.toFixed(2); // one has no quartiles
  };
  const rows = mine.map((one) => [
    `${one.peer}, ${one.road}`,
    one.rounds.map(({ works }) => thousands(works)).join(' · '),
    thousands(thrownOf(one.thrown)),
    times('deliveryMs', one),
    // A minute lasts a minute.
    ...(what === 'one slot' ? [times('wholeMs', one)] : []),
  ]);
  const head = ['', 'works run', 'thrown', 'a delivery ÷ bare'];
  return table(what === 'one slot' ? [...head, 'all of them ÷ bare'] : head, rows);
}

function thrownOf(thrown: Storm['thrown']): number {
  return Object.values(thrown).reduce((sum, times) => sum + times, 0);
}

function thrownList(found: readonly Storm[]): string {
  const words = found.flatMap(({ peer, road, what, thrown }) =>
    Object.entries(thrown).map(
      ([message, times]) => `- ${peer}, ${road}, ${what}: ${times} × “${message}”\n`,
    ),
  );
  return words.length === 0 ? 'nothing.\n' : words.join('');
}

function longTable({ peers, found, seconds }: Longs): string {
  const rows = peers.map((peer) => {
    const one = found.find((long) => long.peer === peer.name);
    if (one === undefined) return rowOf(peer, ['', '', '', '', '']);
    const bytes = one.walBytes === 0 ? 'nothing' : `${thousands(Math.round(one.walBytes / 1024))} KB`;
    return rowOf(peer, [
      String(one.sessions),
      one.inTransaction ? 'yes' : 'no',
      one.xminAge > 100 ? `${thousands(one.xminAge)} transactions` : 'no',
      bytes,
      `${one.cpuMs.toFixed(0)} ms`,
    ]);
  });
  return table([`in ${seconds} s of one work`, 'sessions', 'in a transaction', 'holds vacuum back', 'write-ahead log', 'CPU of its sessions'], rows); // prettier-ignore
}

/** One row a peer, for the page: what it costs beside what becomes of a slot. */
export function summaryOf({ peers, recovery, late }: PeerResults): string {
  if (!peers || !recovery || !late) return '';
  const lengths = [...new Set(peers.found.found.map(({ latencyMs }) => latencyMs))];
  const head = ['', ...lengths.map((ms) => `run ÷ bare, ${ms} ms`), ...lengths.map((ms) => `skip ÷ bare, ${ms} ms`), ...faults, 'late double runs']; // prettier-ignore
  const rows = recovery.found.peers.map((peer) => {
    const price = (what: Price['what'], ms: number) => peers.found.found.find((one) => one.peer === peer.name && one.latencyMs === ms && one.what === what); // prettier-ignore
    const prices = (['run', 'skip'] as const).flatMap((what) =>
      lengths.map((ms) => shortly(price(what, ms))),
    );
    const again = late.found.found.find((one) => one.peer === peer.name);
    return rowOf(peer, [
      ...prices,
      ...faults.map((fault) => recoveredIn(recovery.found, peer.name, fault)),
      again === undefined ? '' : `${again.ranAgainAtS.length} of ${lateAtS.length}`,
    ]);
  });
  return `\n${circumstances(peers.under, true)}${table(head, rows)}\n`;
}

/** In bold where it takes less time than ours. */
function shortly(price: Price | undefined): string {
  if (price === undefined) return '';
  const median = price.toBare.median.toFixed(2);
  return price.toOurs.median < 1 ? `**${median}**` : median;
}
