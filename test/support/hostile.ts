/**
 * What a job of a stranger may return or throw. Each is made anew, as some are used up by being looked at.
 */
import vm from 'node:vm';

export type Maker = readonly [what: string, make: () => unknown];

const boom = (): never => {
  throw new Error('boom');
};

/** An own getter, as class fields and libraries have them. */
export function withGetter<T extends object>(thing: T, key: PropertyKey, get: () => unknown): T {
  return Object.defineProperty(thing, key, { get, enumerable: true, configurable: true });
}

function withValue<T extends object>(thing: T, key: PropertyKey, value: unknown): T {
  return Object.defineProperty(thing, key, { value, enumerable: true, configurable: true, writable: true });
}

const trapped = (target: object): object =>
  new Proxy(target, {
    get: boom,
    has: boom,
    ownKeys: boom,
    getPrototypeOf: boom,
    getOwnPropertyDescriptor: boom,
  });

function revoked(target: object): object {
  const { proxy, revoke } = Proxy.revocable(target, {});
  revoke();
  return proxy;
}

/** Users and groups that know each other, all ways. */
export function acquainted(users: number, groups: number): { users: object[]; groups: object[] } {
  const all = {
    users: Array.from({ length: users }, (_, n) => ({ user: `u${n}`, groups: [] as object[] })),
    groups: Array.from({ length: groups }, (_, n) => ({ group: `g${n}`, users: [] as object[] })),
  };
  for (const user of all.users) user.groups = all.groups;
  for (const group of all.groups) group.users = [...all.users];
  return all;
}

export function friends(count: number): object[] {
  const all = Array.from({ length: count }, (_, n) => ({ name: `f${n}`, friends: [] as object[] }));
  for (const one of all) one.friends = all.filter((other) => other !== one);
  return all;
}

/** An AggregateError of so many, of so many, of so many. */
export function aggregated(...sizes: readonly number[]): Error {
  const [size, ...inner] = sizes;
  if (size === undefined) return new Error('one of many');
  return new AggregateError(
    Array.from({ length: size }, () => aggregated(...inner)),
    `${size} failed`,
  );
}

export function chainOf(length: number, message = 'link'): Error {
  return Array.from({ length }).reduce<Error>(
    (cause, _, n) => new Error(`${message} ${n}`, { cause }),
    new Error('the first'),
  );
}

function doubled(times: number): unknown {
  return Array.from({ length: times }).reduce<unknown>((inner) => [inner, inner], 'x');
}

function endless(): object {
  return withGetter(withGetter({}, 'left', endless), 'right', endless);
}

class EndlessMap extends Map<string, number> {
  override *[Symbol.iterator](): MapIterator<[string, number]> {
    for (;;) yield ['more', 1];
  }
  override entries(): MapIterator<[string, number]> {
    return this[Symbol.iterator]();
  }
  override get size(): number {
    return Infinity;
  }
}

class EndlessSet extends Set<number> {
  override *[Symbol.iterator](): SetIterator<number> {
    for (;;) yield 1;
  }
}

class SymbolName {
  static name = Symbol('name');
  readonly kept = true;
}

class NoName {
  static get name(): string {
    return boom();
  }
  readonly kept = true;
}

/** Errors, or what passes for one somewhere: each has `kept` in what it says, where it can say anything. */
export const errors: readonly Maker[] = [
  ...['message', 'name', 'code', 'stack', 'cause', 'errors', 'constructor', 'toJSON', 'detail', 'then'].map(
    (key): Maker => [`an error whose ${key} getter throws`, () => withGetter(new Error('kept'), key, boom)],
  ),
  [
    'an error whose name getter throws what has no prototype',
    () =>
      withGetter(new Error('kept'), 'name', () => {
        throw Object.create(null);
      }),
  ],
  ...(
    [[['kept', 1]], [{ said: 'kept' }], [42], [null], [Symbol('kept')], [() => 'kept'], [10n]] as const
  ).map(([message]): Maker => [
    `an error with a message of ${typeof message}`,
    () => withValue(new Error(), 'message', message),
  ]),
  [
    'an error whose message became a list shown 2^40 times',
    () => withValue(new Error(), 'message', doubled(40)),
  ],
  ['an error with name 42', () => withValue(new Error('kept'), 'name', 42)],
  ['an error with an object as name', () => withValue(new Error('kept'), 'name', { a: 1 })],
  ['an error with stack null', () => withValue(new Error('kept'), 'stack', null)],
  ['an error with an array as stack', () => withValue(new Error('kept'), 'stack', ['kept'])],
  ['an error with a numeric code', () => withValue(new Error('kept'), 'code', 404)],
  ['an error without a prototype', () => Object.setPrototypeOf(new Error('kept'), null) as unknown],
  [
    'an AggregateError whose errors are null',
    () => withValue(new AggregateError([], 'kept'), 'errors', null),
  ],
  ['an AggregateError whose errors throw', () => withGetter(new AggregateError([], 'kept'), 'errors', boom)],
  [
    'an AggregateError of a Set',
    () => withValue(new AggregateError([], 'kept'), 'errors', new Set([new Error('in')])),
  ],
  [
    'an AggregateError of a million',
    () => withValue(new AggregateError([], 'kept'), 'errors', Array<unknown>(1e6).fill(1)),
  ],
  ['an AggregateError of a hole', () => withValue(new AggregateError([], 'kept'), 'errors', new Array(1e9))],
  [
    'an AggregateError of a revoked list',
    () => withValue(new AggregateError([], 'kept'), 'errors', revoked([])),
  ],
  [
    'an AggregateError of itself',
    () => {
      const all = new AggregateError([], 'kept');
      all.errors.push(all, all);
      return all;
    },
  ],
  ['a Proxy of an error', () => new Proxy(new Error('kept'), {})],
  ['a cause that is a Proxy of an error', () => new Error('kept', { cause: new Proxy(new Error('in'), {}) })],
  ['a cause that is a revoked Proxy', () => new Error('kept', { cause: revoked(new Error('in')) })],
  ['a cause whose every trap throws', () => new Error('kept', { cause: trapped(new Error('in')) })],
  [
    'a cause that is the error',
    () => {
      const error = new Error('kept');
      error.cause = error;
      return error;
    },
  ],
  ['causes 10,000 deep', () => new Error('kept', { cause: chainOf(10_000) })],
  [
    'causes without end',
    () => {
      const fresh = (): Error => withGetter(new Error('kept'), 'cause', fresh);
      return fresh();
    },
  ],
  ['an error of another realm', () => vm.runInNewContext(`new TypeError('kept')`) as unknown],
  [
    'a Proxy of an error of another realm',
    () => new Proxy(vm.runInNewContext(`new TypeError('kept')`) as object, {}),
  ],
  [
    'an AggregateError of another realm',
    () => vm.runInNewContext(`new AggregateError([new Error('in')], 'kept')`) as unknown,
  ],
  ['a DOMException', () => new DOMException('kept', 'AbortError')],
  ['20 × 20 errors', () => new Error('kept', { cause: aggregated(20, 20) })],
  ['20 × 20 × 20 errors', () => new Error('kept', { cause: aggregated(20, 20, 20) })],
  ['8 causes of 40 KB', () => new Error('kept', { cause: chainOf(8, 'x'.repeat(40_000)) })],
  ['an error with a message of 500 MB', () => withValue(new Error('kept'), 'message', 'x'.repeat(5e8))],
  ['an error with friends as cause', () => new Error('kept', { cause: acquainted(30, 8) })],
];

/** Anything else. */
export const values: readonly Maker[] = [
  ['undefined', () => undefined],
  ['null', () => null],
  ['0', () => 0],
  ['-0', () => -0],
  ['NaN', () => NaN],
  ['an empty text', () => ''],
  ['false', () => false],
  ['an empty list', () => []],
  ['a function', () => boom],
  ['a function whose name throws', () => withGetter(() => 1, 'name', boom)],
  ['a class with a Symbol as name', () => SymbolName],
  ['an instance of a class with a Symbol as name', () => new SymbolName()],
  ['an instance of a class whose name throws', () => new NoName()],
  ['a Symbol', () => Symbol('s')],
  ['a BigInt', () => 2n ** 64n],
  ['a BigInt of a million bits', () => 2n ** 1_000_000n],
  ['a Map with a BigInt of a million bits as key', () => new Map([[2n ** 1_000_000n, 1]])],
  ['a date that is none', () => ({ at: new Date(NaN) })],
  ['what has no prototype', () => withValue(Object.create(null) as object, 'kept', true)],
  [
    'toJSON that throws what has no prototype',
    () => ({
      toJSON() {
        throw Object.create(null);
      },
    }),
  ],
  ['toJSON that throws', () => ({ toJSON: boom })],
  ['toJSON that is a getter that throws', () => withGetter({ kept: 1 }, 'toJSON', boom)],
  [
    'toJSON that answers itself',
    () => ({
      kept: 1,
      toJSON() {
        return this;
      },
    }),
  ],
  [
    'toJSON that answers something new',
    () => {
      const fresh = (): object => ({ toJSON: () => ({ fresh: fresh() }) });
      return fresh();
    },
  ],
  [
    'toJSON that calls itself',
    () => ({
      toJSON(): unknown {
        return (this as { toJSON(): unknown }).toJSON();
      },
    }),
  ],
  ['toJSON of a revoked Proxy', () => ({ toJSON: () => revoked({}) })],
  ['a getter that throws', () => withGetter({ kept: 1 }, 'bad', boom)],
  [
    'valueOf and toPrimitive that throw',
    () => ({ valueOf: boom, toString: boom, [Symbol.toPrimitive]: boom }),
  ],
  ['keys that throw as text', () => new Map([[{ toString: boom }, 1]])],
  ['a Map with Symbols as keys', () => new Map([[Symbol('a'), 1]])],
  ['objects without end', endless],
  ['a Map that iterates without end', () => new EndlessMap([['kept', 1]])],
  ['a Set that iterates without end', () => new EndlessSet([1])],
  [
    'a list that iterates without end',
    () =>
      withValue([1], Symbol.iterator, function* () {
        for (;;) yield 1;
      }),
  ],
  ['a list of 2^32 - 1', () => new Proxy([], { get: (_, key) => (key === 'length' ? 2 ** 32 - 1 : key) })],
  [
    'a list whose length is no number',
    () => new Proxy([], { get: (_, key) => (key === 'length' ? Symbol() : 1) }),
  ],
  ['a list of holes', () => new Array<unknown>(1e9)],
  ['100 MB of bytes', () => Buffer.alloc(1e8)],
  ['100 MB of floats', () => ({ floats: new Float64Array(12_500_000) })],
  ['an ArrayBuffer of 100 MB', () => new ArrayBuffer(1e8)],
  ['a text of 500 MB', () => 'x'.repeat(5e8)],
  ['a text object of 500 MB', () => Object('x'.repeat(5e8)) as object],
  [
    'many texts of 7 MB',
    () => Array.from({ length: 100 }, (_, n) => `${n}`.padEnd(3, 'x').repeat(2_300_000)),
  ],
  ['a Symbol of 500 MB', () => Symbol('x'.repeat(5e8))],
  ['a Proxy that is revoked', () => revoked({})],
  ['a list that is revoked', () => revoked([])],
  ['a function that is revoked', () => revoked(() => 1)],
  ['a Proxy whose every trap throws', () => trapped({})],
  [
    'a Proxy without end',
    () => {
      const fresh = (): object =>
        new Proxy(
          {},
          {
            ownKeys: () => ['a', 'b', 'c'],
            get: fresh,
            getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true }),
          },
        );
      return fresh();
    },
  ],
  [
    'a Proxy whose toJSON is a Proxy without end',
    () => {
      const fresh: () => object = () => new Proxy(() => 1, { get: fresh, apply: fresh });
      return { toJSON: fresh() };
    },
  ],
  ['a promise', () => ({ pending: new Promise(() => undefined) })],
  ['a thenable whose then throws', () => withGetter({ kept: 1 }, 'then', boom)],
  ['a WeakMap', () => ({ weak: new WeakMap() })],
  [
    'a generator',
    () =>
      (function* () {
        for (;;) yield 1;
      })(),
  ],
  ['NUL and half letters', () => ({ 'a\u0000': 'b\u0000', '\ud800': 'x\udc00' })],
  ['keys that become alike', () => ({ '\ud800': 1, '\udc00': 2, '\ufffd': 3 })],
  [
    '__proto__ as a key',
    () => JSON.parse('{"__proto__":{"polluted":true},"constructor":{"prototype":1}}') as unknown,
  ],
  ['30 users and 8 groups', () => acquainted(30, 8)],
  ['14 friends', () => friends(14)],
  ['300 friends', () => friends(300)],
  ['a thing shown 2^40 times', () => doubled(40)],
  [
    'a thing shown 30^11 times',
    () => Array.from({ length: 11 }).reduce<unknown>((inner) => Array<unknown>(30).fill(inner), 'x'),
  ],
  ['the global object', () => globalThis],
  ['this process', () => process],
];

/** Any of them, nested in one another and next to plain data: of some hundred values at most, of some 2 MB. */
export function hostileFrom(random: () => number): unknown {
  let left = 30;
  const one = <T>(from: readonly T[]): T => from[Math.floor(random() * from.length)] as T;
  const made: object[] = [];
  const member = (): unknown => (random() < 0.1 && made.length > 0 ? one(made) : anything());
  const keep = <T extends object>(thing: T): T => (made.push(thing), thing);
  const few = (): number => Math.floor(random() * 5);
  const fill = (thing: Record<string, unknown>, keys: readonly string[]) => {
    for (let n = few(); n > 0; n--) {
      const key = one(keys);
      const entry = member();
      const get = random() < 0.5 ? boom : anything;
      if (random() < 0.15) withGetter(thing, key, get);
      else withValue(thing, key, entry);
    }
  };
  const plain: readonly (() => unknown)[] = [
    () => random(),
    () => Math.floor(random() * 1e6),
    () => random() < 0.5,
    () => one(texts),
    () => one(texts).repeat(Math.floor(random() * 2_000)),
    () => BigInt(Math.floor(random() * 1e15)) ** BigInt(few()),
    () => new Date(random() * 1e13),
  ];
  const nested: readonly (() => unknown)[] = [
    () => {
      const thing = keep({});
      fill(thing, keys);
      return thing;
    },
    () => {
      const error = keep(new Error(one(texts)));
      // To set it, the engine first writes the old one, by then with any message that it was given.
      String(error.stack);
      fill(error as never, errorKeys);
      return error;
    },
    () => keep(new AggregateError(Array.from({ length: few() * few() }, member), one(texts))),
    () => {
      const list: unknown[] = [];
      keep(list);
      for (let n = few() * 3; n > 0; n--) list.push(member());
      return list;
    },
    () => keep(new Map(Array.from({ length: few() }, () => [member(), member()]))),
    () => keep(new Set(Array.from({ length: few() }, member))),
    () => new Proxy(keep({ inner: member() }), random() < 0.3 ? { get: boom } : {}),
    () => keep({ toJSON: random() < 0.3 ? boom : anything }),
  ];
  function anything(): unknown {
    left -= 1;
    if (left < 0) return one(plain)();
    return random() < 0.25 ? one(light)[1]() : one(random() < 0.4 ? plain : nested)();
  }
  return anything();
}

const texts = [
  '',
  'a',
  'plain text',
  '\u0000',
  '\ud800',
  '\udfff',
  '😀',
  'ü',
  '"\\',
  '\u0001\u001f',
  '[cut: x]',
];
const keys = [
  'a',
  'b',
  '__proto__',
  'toJSON',
  'then',
  'length',
  'constructor',
  '\u0000',
  '\ud800',
  '[cut]',
  '',
];
const errorKeys = [
  'name',
  'message',
  'stack',
  'cause',
  'errors',
  'code',
  'detail',
  'constructor',
  'toJSON',
  'where',
];
/** Those that take neither time nor room to make. */
const heavy = /MB|million|friends|20 × 20|10,000|realm|global|process|8 causes|users|calls itself/;
const light = [...errors, ...values].filter(([what]) => !heavy.test(what));
