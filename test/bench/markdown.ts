/** Measurements in Markdown. */
import type { Spread } from './pairs.ts';

export type Row = readonly string[];

export function table(head: Row, rows: readonly Row[]): string {
  const line = (cells: Row) => `| ${cells.join(' | ')} |\n`;
  return line(head) + line(head.map(() => '---')) + rows.map(line).join('');
}

export function shown({ median, quartiles }: Spread): string {
  return `${median.toFixed(2)} (${quartiles.map((one) => one.toFixed(2)).join('–')})`;
}
