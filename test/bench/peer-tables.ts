/** What was measured beside peers, as Markdown. */
import type { PeerResults, UnderPeers } from './kept.ts';
import { shown, table } from './markdown.ts';
import {
  faults,
  lateAtS,
  type Lates,
  type Peered,
  type Price,
  type Prices,
  type Recoveries,
} from './peers.ts';

export function peerTables({ peers, recovery, late }: PeerResults): string {
  const parts: string[] = [];
  if (peers) parts.push(`## Peers\n\n${circumstances(peers.under)}${priceTables(peers.found)}`);
  if (recovery) parts.push(`## Recovery\n\n${circumstances(recovery.under)}${recoveryTable(recovery.found)}`);
  if (late) parts.push(`## Late\n\n${circumstances(late.under)}${lateTable(late.found)}`);
  return parts.join('\n');
}

function circumstances({ date, pairs, cores, memoryGb, load, versions }: UnderPeers): string {
  const software = Object.entries(versions).map(([name, version]) => `${name} ${version}`);
  return `${date}, ${pairs} pairs, ${cores} cores, ${memoryGb} GB, load ${load} when it began; ${software.join(', ')}.\n\n`;
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

function recoveryTable({ peers, found, patienceS }: Recoveries): string {
  const cell = (name: string, fault: string) => {
    const one = found.find((recovery) => recovery.peer === name && recovery.fault === fault);
    if (one === undefined) return '';
    return one.seconds === null ? `not within ${patienceS} s` : `${one.seconds.toFixed(1)} s`;
  };
  const rows = peers.map((peer) =>
    rowOf(
      peer,
      faults.map((fault) => cell(peer.name, fault)),
    ),
  );
  return table(['until the slot’s work begins again', ...faults], rows);
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
