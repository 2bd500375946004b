import { isStorable } from '../capture.ts';
import { Problem } from './problem.ts';

/**
 * This module's secret: which JSON is taken. What a job would be given otherwise than it was sent (a number that loses
 * digits, bytes that are no UTF-8, a key that is there twice), and what can't be stored, is refused with its place.
 *
 * No library: `JSON.parse` reads, and what it can't tell is looked for among the tokens of a text that it has taken.
 */

/** A body is an object, and what it brings may have the 12 levels that are kept of params. */
const mostLevels = 13;

/** No number that a double holds exactly as it is written needs more characters. */
const longestNumber = 330;

/** @throws {Problem} 400 */
export function readJson(bytes: Uint8Array): unknown {
  const text = textOf(bytes);
  const value = parse(text);
  const scan = new Scan();
  for (const [token] of text.matchAll(tokens)) scan.read(token);
  return value;
}

/** @throws {Problem} 400, with the offset of the first byte that is none */
function textOf(bytes: Uint8Array): string {
  const text = new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);
  const again = Buffer.from(text);
  if (again.equals(bytes)) return text.replace(/^\uFEFF/, '');
  const byte = bytes.findIndex((one, index) => one !== again[index]);
  throw new Problem(400, 'not_utf8', `The body is not UTF-8, from byte ${byte} on.`, {
    extensions: { byte },
  });
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Problem(400, 'not_json', 'The body is not JSON.');
  }
}

/** Of valid JSON; `true`, `false` and `null` have nothing to be looked at. */
const tokens = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|[{}[\],]/g;

interface Open {
  /** Of an object, those seen so far; null for a list. */
  readonly keys: Set<string> | null;
  /** Where we are in it. */
  at: string | number;
  /** The next text is a key. */
  wantsKey: boolean;
}

/** One walk, without recursion: 30,000 lists in each other are nothing to it. */
class Scan {
  readonly #open: Open[] = [];

  read(token: string): void {
    switch (token[0]) {
      case '{':
      case '[':
        this.#enter(token === '{');
        return;
      case '}':
      case ']':
        this.#open.pop();
        return;
      case ',':
        this.#goOn();
        return;
      case '"':
        this.#text(JSON.parse(token) as string);
        return;
      default:
        if (!isExact(token)) throw this.#refusal('number_inexact', inexact);
    }
  }

  #enter(isObject: boolean): void {
    if (this.#open.length === mostLevels)
      throw this.#refusal('too_deep', `That is nested deeper than ${mostLevels - 1} levels.`);
    this.#open.push({ keys: isObject ? new Set() : null, at: isObject ? '' : 0, wantsKey: isObject });
  }

  #goOn(): void {
    const top = this.#open.at(-1);
    if (typeof top?.at === 'number') top.at += 1;
    else if (top) top.wantsKey = true;
  }

  #text(text: string): void {
    const top = this.#open.at(-1);
    if (top?.keys && top.wantsKey) this.#key(text, top, top.keys);
    if (!isStorable(text))
      throw this.#refusal(
        'bad_text',
        'NUL and lone surrogates can’t be stored; send such bytes as base64, say.',
      );
  }

  #key(key: string, top: Open, keys: Set<string>): void {
    top.at = key;
    top.wantsKey = false;
    if (keys.has(key)) throw this.#refusal('duplicate_key', 'That key is there twice; which one counts?');
    keys.add(key);
  }

  #refusal(code: string, detail: string): Problem {
    return new Problem(400, code, detail, { extensions: { pointer: pointerTo(this.#open) } });
  }
}

const inexact = 'That number would lose digits; send it as a text, such as "7615917337495251231".';

/** RFC 6901; of a very long one the beginning. */
function pointerTo(open: readonly Open[]): string {
  const steps = open.map(({ at }) => `/${String(at).replaceAll('~', '~0').replaceAll('/', '~1')}`);
  return steps.join('').slice(0, 1_000);
}

/** Whether a double is what is written: all its digits; of a whole number beyond 2^53 also its value. */
function isExact(text: string): boolean {
  const value = Number(text);
  if (text.length > longestNumber || !Number.isFinite(value)) return false;
  if (/^-?\d+$/.test(text) && !Number.isSafeInteger(value)) return BigInt(text) === BigInt(value);
  return normal(text) === normal(String(value));
}

/** A number's digits and exponent, in one form: `1.50e3` and `1500` are `15e2`. */
function normal(text: string): string {
  const [, sign = '', whole = '', fraction = '', exponent = '0'] =
    /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(text) ?? [];
  const digits = (whole + fraction).replace(/^0+/, '');
  const ending = /0*$/.exec(digits)?.[0].length ?? 0;
  if (digits === '') return '0';
  return `${sign}${digits.slice(0, digits.length - ending)}e${Number(exponent) - fraction.length + ending}`;
}
