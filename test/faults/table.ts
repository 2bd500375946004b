/** The campaign's results as they are printed. */
import type { RowResult } from './trial.ts';

/** One line a row: how often it was tried, what went wrong, and its times as min / median / max. */
export function table(results: readonly RowResult[]): string {
  const head = ['row', 'trials', 'undone', 'violations', 'ms: min / median / max'];
  const lines = [head, ...results.map(cells)];
  const widths = head.map((_, column) => Math.max(...lines.map((line) => line[column]?.length ?? 0)));
  const right = (column: number) => column >= 1 && column <= 3;
  return lines
    .map((line) =>
      line
        .map((cell, column) =>
          right(column) ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0),
        )
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

function cells({ row, trials, undone, violations, times, skipped }: RowResult): string[] {
  if (skipped !== undefined) return [row, '-', '-', '-', `skipped: ${skipped}`];
  const shown = Object.entries(times).map(([name, values]) => `${name} ${spread(values)}`);
  return [row, String(trials), String(undone.length), String(violations.length), shown.join(' · ')];
}

export function spread(values: readonly number[]): string {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (share: number) => Math.round(sorted[Math.floor((sorted.length - 1) * share)] ?? 0);
  return `${at(0)} / ${at(0.5)} / ${at(1)}`;
}

/** What went wrong, and what could not be done, in words. */
export function remarks(results: readonly RowResult[]): string {
  return results
    .flatMap(({ row, violations, undone, note }) => [
      ...(note === undefined ? [] : [`${row}: ${note}`]),
      ...violations.map((text) => `VIOLATION  ${row}: ${text}`),
      ...undone.map((text) => `undone     ${row}: ${text}`),
    ])
    .join('\n');
}
