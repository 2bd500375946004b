import type { Json } from './run.ts';

/** What is kept of a value: 256 KB of JSON, 12 levels deep, 1,000 entries a level, 64 KB a text. */
const limits = { bytes: 256 * 1024, depth: 12, entries: 1_000, text: 64 * 1024 } as const;

/**
 * Any value as JSON that jsonb takes. NUL and lone surrogates are replaced by U+FFFD (jsonb refuses both), BigInt
 * becomes text, what JSON can't say is named (`[Function: f]`), and what is too deep, too long or goes in circles is
 * cut and marked as cut. `undefined` becomes null; 0, false, '' and [] stay what they are. Never throws.
 */
export function storable(value: unknown): Json {
  const kept = keep(value, 0, []);
  const bytes = Buffer.byteLength(JSON.stringify(kept));
  return bytes <= limits.bytes ? kept : { cut: `${bytes} bytes of JSON, more than the ${limits.bytes} kept` };
}

function keep(value: unknown, depth: number, path: readonly object[]): Json {
  switch (typeof value) {
    case 'string':
      return storableText(value);
    case 'number':
      return Number.isFinite(value) ? value : String(value);
    case 'boolean':
      return value;
    case 'bigint':
      return value.toString();
    case 'undefined':
      return null;
    case 'symbol':
      return storableText(value.toString());
    case 'function':
      return storableText(`[Function: ${value.name}]`);
    case 'object':
      return value === null ? null : keepObject(value, depth, path);
  }
}

function keepObject(value: object, depth: number, path: readonly object[]): Json {
  if (path.includes(value)) return '[cut: circular]';
  if (depth >= limits.depth) return '[cut: too deep]';
  const inside = [...path, value];
  try {
    const converted = ownJson(value);
    if (converted !== value) return keep(converted, depth + 1, inside);
    if (Array.isArray(value)) return keepArray(value, depth, inside);
    return keepEntries(Object.entries(value), depth, inside);
  } catch (error) {
    return `[cut: unreadable: ${storableText(String(error))}]`;
  }
}

function ownJson(value: object): unknown {
  if ('toJSON' in value && typeof value.toJSON === 'function') return (value.toJSON as () => unknown)();
  if (value instanceof Map) return Object.fromEntries(value.entries());
  if (value instanceof Set) return [...value];
  if (value instanceof Error) return { name: value.name, message: value.message };
  return value;
}

function keepArray(value: readonly unknown[], depth: number, inside: readonly object[]): Json {
  const kept = value.slice(0, limits.entries).map((entry) => keep(entry, depth + 1, inside));
  return value.length > limits.entries ? [...kept, `[cut: ${value.length - limits.entries} more]`] : kept;
}

function keepEntries(entries: readonly [string, unknown][], depth: number, inside: readonly object[]): Json {
  const kept = entries
    .filter(([, entry]) => entry !== undefined)
    .slice(0, limits.entries)
    .map(([key, entry]) => [storableText(key), keep(entry, depth + 1, inside)]);
  if (entries.length > limits.entries) kept.push(['[cut]', `${entries.length - limits.entries} more`]);
  return Object.fromEntries(kept) as Json;
}

export function storableText(text: string): string {
  const cut =
    text.length > limits.text
      ? `${text.slice(0, limits.text)}[cut: ${text.length - limits.text} more]`
      : text;
  return cut.toWellFormed().replaceAll('\u0000', '\uFFFD');
}
