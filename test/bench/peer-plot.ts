/** A run and a skip of each peer’s ÷ the bare recipe’s, as bars. Left of the line at 1 they take less time. */
import type { Price, Prices } from './peers.ts';

const width = 640;
const frame = { left: 210, right: 620, top: 44 };
const step = 34;
const kinds = [
  ['run', '#1f6feb', 8],
  ['skip', '#bf5700', 20],
] as const;

/** @param latencyMs one way: of the networks that were measured, the one that is drawn */
export function peerPlot({ peers, found }: Prices, latencyMs: number): string {
  const drawn = peers.filter(({ absent }) => absent === undefined);
  const at = found.filter((one) => one.latencyMs === latencyMs);
  const most = Math.max(1.5, ...at.map(({ toBare }) => toBare.quartiles[1]));
  const x = (value: number) => frame.left + (value / most) * (frame.right - frame.left);
  const bottom = frame.top + drawn.length * step;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${bottom + 40}" font-family="sans-serif" font-size="12" role="img">`,
    `<title>Time of a run and of a skip as multiples of the bare recipe’s, ${latencyMs} ms each way</title>`,
    `<rect width="${width}" height="${bottom + 40}" fill="#fff"/>`,
    text(12, 16, `times as long as the bare recipe, ${latencyMs} ms each way; quartiles as strokes`),
    ...kinds.map(([what, colour], n) => `<rect x="${12 + n * 60}" y="24" width="10" height="10" fill="${colour}"/>${text(26 + n * 60, 33, what)}`), // prettier-ignore
    ...grid(most, x, bottom),
    ...drawn.flatMap(({ name }, n) => [
      text(frame.left - 10, frame.top + n * step + 21, name, ' text-anchor="end"'),
      ...kinds.flatMap(([what, colour, down]) => bar(at.find((one) => one.peer === name && one.what === what), colour, frame.top + n * step + down, x)), // prettier-ignore
    ]),
    '</svg>\n',
  ].join('\n');
}

function text(left: number, top: number, words: string, rest = ''): string {
  return `<text x="${left.toFixed(1)}" y="${top.toFixed(1)}" fill="#24292f"${rest}>${words}</text>`;
}

function grid(most: number, x: (value: number) => number, bottom: number): string[] {
  const steps = Array.from({ length: Math.floor(most / 0.5) + 1 }, (_, n) => n / 2);
  return steps.map(
    (value) =>
      `<path d="M${x(value).toFixed(1)} ${frame.top}V${bottom}" stroke="${value === 1 ? '#24292f' : '#d0d7de'}"/>` +
      text(x(value), bottom + 18, value.toFixed(1), ' text-anchor="middle"'),
  );
}

function bar(price: Price | undefined, colour: string, top: number, x: (value: number) => number): string[] {
  if (price === undefined) return [];
  const { median, quartiles } = price.toBare;
  return [
    `<rect x="${x(0).toFixed(1)}" y="${top}" width="${(x(median) - x(0)).toFixed(1)}" height="10" fill="${colour}"/>`,
    `<path d="M${x(quartiles[0]).toFixed(1)} ${top + 5}H${x(quartiles[1]).toFixed(1)}" stroke="#24292f"/>`,
  ];
}
