/** The ratios to the bare recipe over the length of the network, as a small SVG. Below the line at 1 we are the faster. */
import type { Comparison } from './invocation.ts';

const [width, height] = [640, 320];
const frame = { left: 48, right: 470, top: 30, bottom: 272 };

interface Series {
  readonly name: string;
  readonly colour: string;
  readonly points: readonly Comparison[];
}

const kinds = [
  ['run, pg', 'pg', 'run ÷ bare recipe', '#1f6feb'],
  ['skip, pg', 'pg', 'skip ÷ bare skip', '#bf5700'],
  ['run, neon', 'neon', 'run ÷ bare recipe', '#2da44e'],
  ['skip, neon', 'neon', 'skip ÷ bare skip', '#8250df'],
] as const;

export function plot(found: readonly Comparison[]): string {
  const all = kinds.map(([name, driver, what, colour]) => ({
    name,
    colour,
    points: found.filter((one) => one.driver === driver && one.what === what),
  }));
  const most = Math.max(2, ...all.flatMap(({ points }) => points.map(({ ratio }) => ratio.quartiles[1])));
  const y = (value: number) => frame.bottom - (value / most) * (frame.bottom - frame.top);
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12" role="img">`,
    '<title>Time of a recorded invocation as a multiple of the bare recipe’s, by the latency of the network</title>',
    `<rect width="${width}" height="${height}" fill="#fff"/>`,
    text(frame.left, 14, 'times as long as the bare recipe; quartiles as strokes'),
    ...grid(most, y),
    ...all.flatMap((series, n) => drawn(series, n, y)),
    '</svg>\n',
  ].join('\n');
}

function x(latencyMs: number): number {
  return frame.left + 14 + (latencyMs / 10) * (frame.right - frame.left - 28);
}

function text(left: number, top: number, words: string, rest = ''): string {
  return `<text x="${left.toFixed(1)}" y="${top.toFixed(1)}" fill="#24292f"${rest}>${words}</text>`;
}

function grid(most: number, y: (value: number) => number): string[] {
  const steps = Array.from({ length: Math.floor(most / 0.5) + 1 }, (_, n) => n / 2);
  const middle = ' text-anchor="middle"';
  return [
    ...steps.map(
      (step) =>
        `<path d="M${frame.left} ${y(step).toFixed(1)}H${frame.right}" stroke="${step === 1 ? '#24292f' : '#d0d7de'}"/>` +
        text(frame.left - 8, y(step) + 4, step.toFixed(1), ' text-anchor="end"'),
    ),
    text(frame.right + 6, y(1) + 4, 'the bare recipe'),
    ...[0, 2.5, 5, 10].map((ms) => text(x(ms), frame.bottom + 18, String(ms), middle)),
    text((frame.left + frame.right) / 2, frame.bottom + 38, 'latency each way, ms', middle),
  ];
}

/** Medians, joined; quartiles as a stroke, side by side. */
function drawn({ name, colour, points }: Series, n: number, y: (value: number) => number): string[] {
  const at = points.map(({ latencyMs, ratio }) => ({ left: x(latencyMs) + (n - 1.5) * 5, ratio }));
  if (at.length === 0) return [];
  const line = at.map(({ left, ratio }) => `${left.toFixed(1)},${y(ratio.median).toFixed(1)}`).join(' ');
  const legend = frame.top + 12 + n * 20;
  return [
    `<polyline points="${line}" fill="none" stroke="${colour}" stroke-width="2"/>`,
    ...at.map(({ left, ratio: { median, quartiles } }) =>
      [
        `<path d="M${left.toFixed(1)} ${y(quartiles[0]).toFixed(1)}V${y(quartiles[1]).toFixed(1)}" stroke="${colour}"/>`,
        `<circle cx="${left.toFixed(1)}" cy="${y(median).toFixed(1)}" r="3.5" fill="${colour}"/>`,
      ].join(''),
    ),
    `<circle cx="${frame.right + 24}" cy="${legend - 4}" r="4" fill="${colour}"/>${text(frame.right + 34, legend, name)}`,
  ];
}
