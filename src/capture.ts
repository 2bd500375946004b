import { types } from 'node:util';
import { sqlFields, type Json, type RunError } from './run.ts';

/**
 * This module's secret: how anything at all that a job returns or throws becomes JSON that jsonb takes.
 *
 * One walk has one budget for the whole of what it keeps: values looked at, bytes of JSON, depth, letters read, time.
 * Bounds of each level multiply (20 × 20 × 20 errors; friends who all know each other), a bound of the whole can't.
 * Every touch of what is the job's own (a getter, `toJSON`, a Proxy's trap) is guarded and counted, and what is ours
 * never iterates by the job's iterators, lengths or `valueOf`. What is cut says so: `[cut: …]`.
 *
 * Two limits, as they are the engine's. A getter that loops for ever can't be interrupted: it blocks the process as it
 * would anywhere else in the job. And the names of an object's members can only be asked for all at once, some 0.6 µs
 * each: that is in proportion to what the job holds already, and is done once an object.
 */

/** What a walk may keep and spend. */
interface Limits {
  /** Of JSON, all in all. */
  readonly bytes: number;
  /** Of one text, in UTF-16 units: the outermost, and any further inside. */
  readonly text: number;
  readonly innerText: number;
  /** Of the stacks of all errors together, in bytes. */
  readonly stacks: number;
}

/** Output has been bounded so since the first version. Inside an event it is cut if the event gets too large. */
const valueLimits: Limits = { bytes: 256 * 1024, text: 64 * 1024, innerText: 64 * 1024, stacks: 0 };

/**
 * PutEvents takes 256 KB for all entries of a call (EventBridge's quota), of which the sink fills 239 with one entry:
 * an error of 64 KB and params of 64 KB (the most that the HTTP entry takes) fit whole. A message of 16 KB at most
 * leaves room for what its causes say, and stacks may not crowd out messages.
 */
const errorLimits: Limits = { bytes: 64 * 1024, text: 16 * 1024, innerText: 4 * 1024, stacks: 16 * 1024 };

/** Values looked at: the job's members, and each touch of them. 20,000 take some 20 ms. */
const mostNodes = 20_000;
/** Levels of nesting, of values as of causes. */
const deepest = 12;
/** Of one list, object, Map or Set. */
const mostEntries = 1_000;
/** Of one error's `errors`. */
const mostErrors = 100;
/** To read the beginning of a text, the engine may have to lay out the whole: `'x'.repeat(5e8)` takes 500 MB. */
const mostLetters = 8 * 1024 * 1024;
/** A tenth of what is kept of the invocation's time for recording an outcome and publishing it. */
const longestMs = 1_000;
/** What the marks of unfinished levels, and the last value before the end, take beyond the budget: bytes. */
const reserve = 2_048;
const longestStack = 4_000;
const longestName = 256;
const longestKey = 1_024;
/** Turning it into decimals takes time with the square of its length. 4,932 digits. */
const largestBigInt = 2n ** 16_384n;

/**
 * Any value as JSON that jsonb takes, of 256 KB at most: NUL and lone surrogates become U+FFFD (jsonb refuses both),
 * BigInt becomes text, what JSON can't say is named (`[Function: f]`), and what goes in circles or beyond a bound is
 * cut and marked as cut. `undefined` becomes null; 0, false, '' and [] stay what they are. Never throws.
 */
export function captureValue(value: unknown): Json {
  return attempt(
    () => new Walk(valueLimits).value(value, 0),
    () => '[cut: unreadable]',
  );
}

/**
 * What was thrown, of 64 KB at most, with its causes. An error of another realm is the error it is; what is no error
 * is a `NonError` whose message is its content, as JSON where it isn't text. Never throws.
 */
export function captureError(thrown: unknown): RunError {
  return attempt(
    () => new Walk(errorLimits).error(thrown, 0),
    () => ({ name: 'Cut', message: '[cut: unreadable]' }),
  );
}

/** Whether the database stores a text as it is: it has no NUL, and no half of a character. */
export function isStorable(text: string): boolean {
  return text.isWellFormed() && !text.includes('\0');
}

/** Text that jsonb takes, of 64 K letters at most. */
export function captureText(text: string): string {
  return new Walk(valueLimits).text(text, valueLimits.text);
}

/** `instanceof` for what a stranger threw: on a Proxy it asks a trap, which may throw. */
export function isA<T>(value: unknown, Class: abstract new (...args: never[]) => T): value is T {
  return attempt(
    () => value instanceof Class,
    () => false,
  );
}

/** What was made of an object that had no cut in it, at the deepest level where it was met, and what it cost. */
interface Whole<T> {
  readonly kept: T;
  readonly depth: number;
  readonly nodes: number;
  readonly bytes: number;
}

interface Met<T> {
  readonly whole: Whole<T> | undefined;
  /** The shallowest level at which it was met and something in it was cut. */
  readonly cutAt: number;
}

/** Of one kind of things met: as values, or as errors. */
interface Memory<T> {
  readonly path: Set<object>;
  readonly met: Map<object, Met<T>>;
  readonly cut: (why: string) => T;
}

class Walk {
  readonly #limits: Limits;
  readonly #endsAt = performance.now() + longestMs;
  readonly #values = memory<Json>((why) => this.#cut(why));
  readonly #errors = memory<RunError>((why) => this.#cutError(why));
  #nodes = mostNodes;
  #letters = mostLetters;
  #bytes: number;
  #stacks: number;
  /** Cuts that depend on the way that led there. */
  #detours = 0;

  constructor(limits: Limits) {
    this.#limits = limits;
    this.#bytes = limits.bytes - reserve;
    this.#stacks = limits.stacks;
  }

  value(value: unknown, depth: number): Json {
    this.#nodes -= 1;
    switch (typeof value) {
      case 'string':
        return this.#string(value, depth);
      case 'number':
        return this.#number(value);
      case 'boolean':
        return this.#small(value);
      case 'bigint':
        return this.#bigint(value);
      case 'undefined':
        return this.#small(null);
      case 'symbol':
        return this.text(String(value), longestKey);
      case 'function':
        return this.text(`[Function: ${nameOf(value) ?? 'anonymous'}]`, longestKey);
      case 'object':
        return value === null ? this.#small(null) : this.#object(value, depth);
    }
  }

  #string(value: string, depth: number): Json {
    return this.text(value, depth === 0 ? this.#limits.text : this.#limits.innerText);
  }

  /** JSON has no NaN and no infinities. */
  #number(value: number): Json {
    return this.#small(Number.isFinite(value) ? value : String(value));
  }

  error(thrown: unknown, depth: number): RunError {
    this.#nodes -= 1;
    if (!isError(thrown) && !isShapedAsError(thrown)) return this.#nonError(thrown, depth);
    return this.#once(this.#errors, thrown, depth, () => this.#errorFields(thrown, depth));
  }

  /** Cleaned, and cut to so many UTF-16 units and to the bytes that are left. */
  text(text: string, most: number): string {
    const kept = this.#shortened(text, most);
    this.#bytes -= sizeOf(kept);
    return kept;
  }

  #shortened(text: string, most: number): string {
    if (text.length > this.#letters) return this.#cut(`a text of ${text.length} letters`);
    this.#letters -= text.length;
    const kept = fitting(text.slice(0, most), Math.max(0, this.#bytes));
    if (kept.length === text.length) return cleaned(kept);
    const whole = kept.replace(halfAtTheEnd, '');
    return cleaned(whole) + this.#cut(`${text.length - whole.length} more`);
  }

  /** Of ASCII, and short. */
  #small<T extends string | number | boolean | null>(kept: T): T {
    this.#bytes -= String(kept).length + 2;
    return kept;
  }

  #bigint(value: bigint): string {
    const isLarge = value > largestBigInt || value < -largestBigInt;
    return isLarge ? this.#cut('a BigInt of more than 16,384 bits') : this.text(String(value), Infinity);
  }

  #cut(why: string): string {
    const mark = `[cut: ${why}]`;
    this.#bytes -= sizeOf(mark);
    return mark;
  }

  #cutError(why: string): RunError {
    this.#bytes -= 30;
    return { name: 'Cut', message: this.#cut(why) };
  }

  #isSpent(): boolean {
    return this.#nodes <= 0 || this.#bytes <= 0 || performance.now() > this.#endsAt;
  }

  /**
   * Things that point at each other would be shown once for each way that leads to them. A thing that was shown whole
   * is shown again as it is, for no more work; one in which something was cut is walked again only where it is less
   * deep, so that more of it may be seen. So each is walked at most twice for each level.
   */
  #once<T>(memory: Memory<T>, thing: object, depth: number, walk: () => T): T {
    const met = memory.met.get(thing) ?? { whole: undefined, cutAt: Infinity };
    if (memory.path.has(thing)) return this.#detour(memory, 'circular');
    if (depth >= deepest) return this.#detour(memory, 'too deep');
    if (met.whole && depth <= met.whole.depth) return this.#again(memory, met.whole);
    if (depth >= met.cutAt) return this.#detour(memory, 'repeated');
    memory.path.add(thing);
    const [nodes, bytes, detours] = [this.#nodes, this.#bytes, this.#detours];
    const kept = walk();
    const whole = { kept, depth, nodes: nodes - this.#nodes, bytes: bytes - this.#bytes };
    memory.path.delete(thing);
    memory.met.set(thing, detours === this.#detours ? { ...met, whole } : { ...met, cutAt: depth });
    return kept;
  }

  #detour<T>(memory: Memory<T>, why: string): T {
    this.#detours += 1;
    return memory.cut(why);
  }

  #again<T>(memory: Memory<T>, { kept, nodes, bytes }: Whole<T>): T {
    if (bytes > this.#bytes || nodes > this.#nodes) return this.#detour(memory, 'repeated');
    this.#nodes -= nodes;
    this.#bytes -= bytes;
    return kept;
  }

  #object(value: object, depth: number): Json {
    return this.#once(this.#values, value, depth, () =>
      attempt(
        () => this.#named(value) ?? this.#content(ownJson(value), depth),
        (thrown) => this.#cut(unreadable(thrown)),
      ),
    );
  }

  /** What has no content for JSON, or so much that its own `toJSON` must not be asked. */
  #named(value: object): Json | undefined {
    if (types.isPromise(value)) return this.text('[Promise]', longestName);
    if (types.isDate(value) && Number.isNaN(Date.prototype.getTime.call(value)))
      return this.text('Invalid Date', longestName);
    if (types.isAnyArrayBuffer(value)) return this.text('[ArrayBuffer]', longestName);
    if (types.isDataView(value)) return this.text('[DataView]', longestName);
    return undefined;
  }

  #content(value: unknown, depth: number): Json {
    if (typeof value !== 'object' || value === null) return this.value(value, depth + 1);
    this.#bytes -= 2;
    if (types.isTypedArray(value)) return this.#typedArray(value, depth);
    if (Array.isArray(value)) return this.#list(value, lengthOf(value), depth);
    if (types.isMap(value)) return this.#map(value, depth);
    if (types.isSet(value)) return this.#list(...elementsOf(value), depth);
    if (types.isBoxedPrimitive(value)) return this.value(unboxed(value), depth + 1);
    if (isError(value)) return this.error(value, depth);
    return this.#members(value, depth);
  }

  #typedArray(value: NodeJS.TypedArray, depth: number): Json {
    const data = this.#list(value, typedLength(value), depth);
    if (!isA(value, Buffer)) return data;
    this.#bytes -= 26;
    return { type: 'Buffer', data };
  }

  /** By index: an iterator of the job's own may have no end. */
  #list(list: object, length: number, depth: number): Json {
    const kept: Json[] = [];
    while (kept.length < Math.min(length, mostEntries) && !this.#isSpent()) {
      this.#bytes -= 1;
      kept.push(this.#member(list, kept.length, depth) ?? this.#small(null));
    }
    return kept.length < length ? [...kept, this.#cut(`${length - kept.length} more`)] : kept;
  }

  /** With keys of objects it is a list of pairs, as `toString` of each would be the job's. */
  #map(map: ReadonlyMap<unknown, unknown>, depth: number): Json {
    const [pairs, size] = pairsOf(map);
    if (pairs.some(([key]) => isThing(key))) return this.#list(pairs, size, depth);
    const members = pairs.map(
      ([key, entry]) => [this.#mapKey(key), () => this.value(entry, depth + 1)] as const,
    );
    return this.#entries(members, size);
  }

  #mapKey(key: unknown): string {
    return typeof key === 'bigint' ? this.#bigint(key) : String(key);
  }

  #members(value: object, depth: number): Json {
    const keys = keysOf(value);
    const isShown = (key: string) => !types.isProxy(value) || isEnumerable(value, key);
    const members = keys
      .slice(0, mostEntries)
      .map((key) => [key, () => (isShown(key) ? this.#member(value, key, depth) : undefined)] as const);
    const kept = this.#entries(members, keys.length);
    this.#nodes -= Math.floor(keys.length / 100);
    return kept;
  }

  #entries(members: readonly (readonly [string, () => Json | undefined])[], size: number): Json {
    const kept = new Map<string, Json>();
    let seen = 0;
    for (const [key, read] of members) {
      if (this.#isSpent()) break;
      seen += 1;
      const entry = read();
      if (entry !== undefined) kept.set(unused(this.#key(key), kept, seen), entry);
    }
    if (seen < size) kept.set(unused('[cut]', kept, seen), `${size - seen} more`);
    // Not by assignment: `__proto__` would be taken for the prototype.
    return Object.fromEntries(kept);
  }

  /** A colon, a comma, and what makes it unlike its neighbours. */
  #key(key: string): string {
    this.#bytes -= 8;
    return this.text(key, longestKey);
  }

  #member(value: object, key: PropertyKey, depth: number): Json | undefined {
    return attempt(
      () => {
        const member: unknown = Reflect.get(value, key);
        this.#nodes -= member === undefined ? 1 : 0;
        return member === undefined ? undefined : this.value(member, depth + 1);
      },
      (thrown) => this.#cut(unreadable(thrown)),
    );
  }

  #errorFields(error: object, depth: number): RunError {
    this.#bytes -= 30;
    const cause = this.#read(error, 'cause');
    const errors = this.#read(error, 'errors');
    return {
      name: this.text(errorName(error), longestName),
      message: this.#message(error, depth),
      ...this.#code(error),
      ...this.#sqlFields(error),
      ...this.#stack(error),
      ...(cause === undefined ? {} : { cause: this.#inner(cause, depth) }),
      ...(isThing(errors) ? { errors: this.#innerErrors(errors, depth) } : {}),
    };
  }

  #message(error: object, depth: number): string {
    const message = attempt(
      () => read(error, 'message') ?? '',
      (thrown) => this.#cut(unreadable(thrown)),
    );
    return this.#words(message, depth);
  }

  #nonError(thrown: unknown, depth: number): RunError {
    this.#bytes -= 30;
    return { name: 'NonError', message: this.#words(thrown, depth) };
  }

  /** Text as it is; anything else as JSON, of which half the room is kept for its quotes in a text of JSON. */
  #words(value: unknown, depth: number): string {
    const most = depth === 0 ? this.#limits.text : this.#limits.innerText;
    if (typeof value === 'string') return this.text(value, most);
    const kept = this.#within(Math.min(most, this.#bytes) / 2, () => this.value(value, depth));
    return this.text(typeof kept === 'string' ? kept : JSON.stringify(kept), most);
  }

  #within<T>(bytes: number, walk: () => T): T {
    const keptBack = Math.max(0, this.#bytes - bytes);
    this.#bytes -= keptBack;
    const kept = walk();
    this.#bytes += keptBack;
    return kept;
  }

  /** Some give a number (gRPC, the DOM). */
  #code(error: object): Pick<RunError, 'code'> {
    const code = this.#read(error, 'code');
    const isCode = typeof code === 'string' || (typeof code === 'number' && Number.isFinite(code));
    return isCode ? { code: this.#field(String(code), longestName) } : {};
  }

  #sqlFields(error: object): Partial<RunError> {
    const told = sqlFields.map((field) => [field, this.#read(error, field)] as const);
    return Object.fromEntries(
      told.flatMap(([field, text]) =>
        typeof text === 'string' ? [[field, this.#field(text, this.#limits.innerText)]] : [],
      ),
    );
  }

  #field(text: string, most: number): string {
    this.#bytes -= 16;
    return this.text(text, most);
  }

  /** The engine writes it when it is asked for: with `toString` of a message that is no text, which may have no end. */
  #stack(error: object): Pick<RunError, 'stack'> {
    const isSafe = ['name', 'message'].every(
      (key) => !isGetter(error, key) && !isThing(this.#read(error, key)),
    );
    const stack = isSafe && this.#limits.stacks > 0 ? this.#read(error, 'stack') : undefined;
    if (typeof stack !== 'string' || stack === '') return {};
    const before = this.#bytes;
    const kept = this.#within(Math.min(this.#stacks, this.#bytes), () => this.#field(stack, longestStack));
    this.#stacks -= before - this.#bytes;
    return { stack: kept };
  }

  #inner(cause: unknown, depth: number): RunError {
    this.#bytes -= 12;
    return this.#isSpent() ? this.#cutError('no room left') : this.error(cause, depth + 1);
  }

  #innerErrors(errors: object, depth: number): readonly RunError[] {
    this.#bytes -= 12;
    const [list, length] = attempt(
      () => listOf(errors),
      (thrown) => [[this.#cutError(unreadable(thrown))], 1] as const,
    );
    const kept: RunError[] = [];
    while (kept.length < Math.min(length, mostErrors) && !this.#isSpent())
      kept.push(this.#innerError(list, kept.length, depth));
    return kept.length < length ? [...kept, this.#cutError(`${length - kept.length} more`)] : kept;
  }

  #innerError(list: object, index: number, depth: number): RunError {
    return attempt(
      () => this.#inner(Reflect.get(list, index), depth),
      (thrown) => this.#cutError(unreadable(thrown)),
    );
  }

  /** Undefined where it can't be read. */
  #read(thing: object, key: string): unknown {
    this.#nodes -= 1;
    return attempt(
      () => read(thing, key),
      () => undefined,
    );
  }
}

function memory<T>(cut: (why: string) => T): Memory<T> {
  return { path: new Set(), met: new Map(), cut };
}

function attempt<T, F>(run: () => T, instead: (thrown: unknown) => F): T | F {
  try {
    return run();
  } catch (thrown) {
    return instead(thrown);
  }
}

function read(thing: object, key: PropertyKey): unknown {
  return Reflect.get(thing, key);
}

function isThing(value: unknown): value is object {
  return (typeof value === 'object' && value !== null) || typeof value === 'function';
}

/** Of any realm; a Proxy of an error is one by its prototypes. */
function isError(value: unknown): value is object {
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- Error.isError comes with Node 24
  return types.isNativeError(value) || (typeof value === 'object' && isA(value, Error));
}

/** A Proxy of another realm's error, or a class that only acts as one. A plain object with a stack is none. */
function isShapedAsError(value: unknown): value is object {
  if (typeof value !== 'object' || value === null) return false;
  return attempt(
    () =>
      ['name', 'message', 'stack'].every((key) => typeof read(value, key) === 'string') && !isPlain(value),
    () => false,
  );
}

function isPlain(value: object): boolean {
  const prototype = Reflect.getPrototypeOf(value);
  return prototype === null || Reflect.getPrototypeOf(prototype) === null;
}

/** As JSON.stringify does it, but not for binary data: a Buffer's makes a list of all of it. */
function ownJson(value: object): unknown {
  if (types.isTypedArray(value)) return value;
  const toJson = read(value, 'toJSON');
  return typeof toJson === 'function' ? (Reflect.apply(toJson, value, ['']) as unknown) : value;
}

function lengthOf(list: object): number {
  const length = read(list, 'length');
  return typeof length === 'number' && length > 0 ? Math.floor(length) : 0;
}

/** By the getter that all typed arrays inherit, whatever a subclass says. */
function typedLength(list: NodeJS.TypedArray): number {
  return Reflect.get(Reflect.getPrototypeOf(Uint8Array.prototype) ?? {}, 'length', list) as number;
}

/** What is really in it, whatever a subclass iterates over; and how much that is. */
function pairsOf(map: ReadonlyMap<unknown, unknown>): [[unknown, unknown][], number] {
  const pairs = firstOf<[unknown, unknown]>(Map.prototype.entries.call(map));
  return [pairs, Reflect.get(Map.prototype, 'size', map)];
}

/** The same of a Set. */
function elementsOf(set: ReadonlySet<unknown>): [unknown[], number] {
  const elements = firstOf<unknown>(Set.prototype.values.call(set));
  return [elements, Reflect.get(Set.prototype, 'size', set)];
}

function firstOf<T>(all: Iterable<T>): T[] {
  const first: T[] = [];
  for (const entry of all) if (first.push(entry) === mostEntries) break;
  return first;
}

function listOf(errors: object): readonly [object, number] {
  if (Array.isArray(errors)) return [errors, lengthOf(errors)];
  return types.isSet(errors) ? elementsOf(errors) : [[errors], 1];
}

function unboxed(value: object): unknown {
  if (types.isStringObject(value)) return String.prototype.valueOf.call(value);
  if (types.isNumberObject(value)) return Number.prototype.valueOf.call(value);
  if (types.isBooleanObject(value)) return Boolean.prototype.valueOf.call(value);
  if (types.isBigIntObject(value)) return BigInt.prototype.valueOf.call(value);
  return Symbol.prototype.valueOf.call(value);
}

/** Of a Proxy not by Object.keys, which asks a trap once for each of them. */
function keysOf(value: object): string[] {
  if (!types.isProxy(value)) return Object.keys(value);
  return Reflect.ownKeys(value).filter((key) => typeof key === 'string');
}

function isGetter(thing: object, key: string): boolean {
  return attempt(
    () => Reflect.getOwnPropertyDescriptor(thing, key)?.get !== undefined,
    () => true,
  );
}

function isEnumerable(value: object, key: string): boolean {
  return attempt(
    () => Reflect.getOwnPropertyDescriptor(value, key)?.enumerable === true,
    () => false,
  );
}

/** Keys may have become alike by cleaning or cutting: then the later ones say how-manyth member they were. */
function unused(key: string, kept: ReadonlyMap<string, Json>, position: number): string {
  let free = key;
  while (kept.has(free)) free += `~${position}`;
  return free;
}

function nameOf(thing: unknown): string | undefined {
  const name = isThing(thing)
    ? attempt(
        () => read(thing, 'name'),
        () => undefined,
      )
    : undefined;
  return typeof name === 'string' && name !== '' ? name : undefined;
}

/** The names that an error has without saying anything of its own. */
const inherited = new Set(
  [Error, TypeError, RangeError, SyntaxError, ReferenceError, EvalError, URIError, AggregateError].map(
    ({ name }) => name,
  ),
);

/** A name that only says "Error" gives way to the class's, unless a bundler has made a letter or two of that. */
function errorName(error: object): string {
  const told = (key: string) =>
    attempt(
      () => read(error, key),
      () => undefined,
    );
  const name = told('name');
  const given = typeof name === 'string' ? name : typeof name === 'number' ? String(name) : '';
  const ofClass = nameOf(told('constructor')) ?? '';
  const saysLittle = given === '' || (inherited.has(given) && !hasOwn(error, 'name'));
  return saysLittle && ofClass.length > 2 ? ofClass : given || 'Error';
}

function hasOwn(thing: object, key: string): boolean {
  return attempt(
    () => Object.hasOwn(thing, key),
    () => false,
  );
}

/** Why something of the job's could not be read, in a few words of the error that it threw. */
function unreadable(thrown: unknown): string {
  const words = isThing(thrown) ? [nameOf(thrown), messageOf(thrown)] : [thrown];
  const said = words.flatMap((word) => (typeof word === 'string' && word.length < 10_000 ? [word] : []));
  return ['unreadable', ...said.map((word) => cleaned(word.slice(0, 100)))].join(': ');
}

function messageOf(thrown: object): unknown {
  return attempt(
    () => read(thrown, 'message'),
    () => undefined,
  );
}

function cleaned(text: string): string {
  return text.toWellFormed().replaceAll('\u0000', '\uFFFD');
}

const halfAtTheEnd = /[\uD800-\uDBFF]$/;

const needsNoEscape = /^[ !#-[\]-~]*$/;

function sizeOf(text: string): number {
  if (needsNoEscape.test(text)) return text.length + 2;
  return Buffer.byteLength(JSON.stringify(text));
}

/** As much of the beginning as takes so many bytes of JSON. */
function fitting(text: string, bytes: number): string {
  let kept = text;
  for (let size = sizeOf(kept); size > bytes && kept !== ''; size = sizeOf(kept))
    kept = kept.slice(0, Math.floor(kept.length * Math.min(0.9, bytes / size)));
  return kept;
}
