/**
 * Captures so many hostile values of a seed, each as a value and as an error, and every heavy one, inside a heap that
 * the caller has made small. Prints what it found as JSON; dies where a capture outgrows the heap.
 */
import { captureError, captureValue } from '../../src/capture.ts';
import { errors, hostileFrom, values } from './hostile.ts';
import { randomFrom } from './random.ts';

const [seed = 1, count = 0] = process.argv.slice(2).map(Number);
const captures = { value: captureValue, error: captureError };
const bounds = { value: 256 * 1024, error: 64 * 1024 };
const found = {
  captured: 0,
  slowest: { ms: 0, what: '' },
  largest: { value: 0, error: 0 },
  bad: [] as string[],
};

function cpuMs(run: () => string): [string, number] {
  const before = process.cpuUsage();
  const text = run();
  const { user, system } = process.cpuUsage(before);
  return [text, (user + system) / 1_000];
}

/** The faster of two, where the first was slow: the garbage of others is collected in somebody's time. */
function look(what: string, make: () => unknown): void {
  for (const kind of ['value', 'error'] as const) {
    const timed = () => cpuMs(captured.bind(null, kind, make()));
    const first = timed();
    const [text, ms] = first[1] < 50 ? first : timed();
    const bytes = Buffer.byteLength(text);
    found.captured += 1;
    if (ms > found.slowest.ms) found.slowest = { ms, what };
    found.largest[kind] = Math.max(found.largest[kind], bytes);
    if (
      bytes > bounds[kind] ||
      !text.isWellFormed() ||
      /\\u0000|\\ud[89a-f]/.test(text.replaceAll('\\\\', ''))
    )
      found.bad.push(`${what}, as ${kind}: ${text.slice(0, 200)}`);
  }
}

function captured(kind: 'value' | 'error', thing: unknown): string {
  return JSON.stringify(captures[kind](thing));
}

const random = randomFrom(seed);
for (let n = 0; n < count; n++) look(`value ${n} of seed ${seed}`, () => hostileFrom(random));
if (count === 0) for (const [what, make] of [...errors, ...values]) look(what, make);
process.stdout.write(JSON.stringify(found));
