/**
 * This module's secret: how far SQL text must be read to know what it would do to a session that is not the job's own.
 *
 * Only the beginning of a statement decides, since the server takes them one at a time; what hides deeper (a COMMIT
 * in a procedure or a DO block) the server refuses by itself inside a transaction.
 */

/** A statement that would end, split, stall or outlive the lock's transaction. Nothing was sent. */
export class ForbiddenStatement extends Error {
  override readonly name = 'ForbiddenStatement';
}

/** What a statement is to the transaction that it runs in. */
export type Statement =
  | { readonly kind: 'begin' | 'commit' | 'rollback' | 'other' }
  | { readonly kind: 'savepoint' | 'rollback to' | 'release'; readonly name: string };

const pooled = 'it would stay on a connection that a pooler may hand to others';

/** First keyword → why a job may not send it. */
const forbidden: Readonly<Record<string, string>> = {
  prepare: pooled,
  execute: pooled,
  deallocate: 'there is nothing of the job’s to deallocate',
  copy: 'COPY stalls the heartbeat; insert from an array with unnest',
  listen: 'the connection ends with the run',
  unlisten: 'the connection may be shared by a pooler',
  load: pooled,
  discard: 'the connection may be shared by a pooler',
  reset: 'the connection may be shared by a pooler; SET LOCAL … TO DEFAULT ends with the run',
};

/** @throws {ForbiddenStatement} with the reason */
export function read(text: string): Statement {
  const plain = skeleton(text)
    .replace(/\s+/g, ' ')
    .trim()
    .replace(/[ ;]+$/, '');
  const keyword = /^(?:[a-z]+|\(|$)/i.exec(plain)?.[0].toLowerCase();
  if (keyword === undefined) throw new ForbiddenStatement('a statement begins with a keyword');
  if (setsEncoding(plain, text))
    throw refusal(
      'client_encoding',
      'the drivers read and write UTF-8 alone, and the record is written as they do',
    );
  const reason = Object.hasOwn(forbidden, keyword) ? forbidden[keyword] : undefined;
  if (reason !== undefined) throw refusal(keyword, reason);
  return control(plain, keyword) ?? otherwise(plain, keyword);
}

function setsEncoding(plain: string, text: string): boolean {
  if (/^set local (?:names|"?client_encoding"?)\b/i.test(plain)) return true;
  return /\bset_config\s*\(/i.test(text) && /\bclient_encoding\b/i.test(text);
}

/** What a transaction control statement without its own BEGIN is answered. */
export function unbegun(kind: 'commit' | 'rollback'): ForbiddenStatement {
  return kind === 'commit'
    ? refusal('commit', 'no BEGIN came before; returning from the work commits')
    : refusal('rollback', 'no BEGIN came before; throwing from the work rolls back');
}

function refusal(what: string, reason: string): ForbiddenStatement {
  return new ForbiddenStatement(`${what.toUpperCase()} is not for tx: ${reason}`);
}

const identifier = String.raw`([a-z_\u0080-\uffff][\w$\u0080-\uffff]*|"(?:[^"]|"")+")`;
const end = /^(?:commit|end)(?: work| transaction)?(?: and no chain)?$/i;
const undo = /^(?:rollback|abort)(?: work| transaction)?(?: and no chain)?$/i;
const begin = /^(?:begin(?: work| transaction)?|start transaction|set transaction)\b(.*)$/i;
const named: readonly (readonly [Extract<Statement, { name: string }>['kind'], RegExp])[] = [
  ['savepoint', new RegExp(`^savepoint ?${identifier}$`, 'i')],
  ['rollback to', new RegExp(`^rollback(?: work| transaction)? to(?: savepoint)? ?${identifier}$`, 'i')],
  ['release', new RegExp(`^release(?: savepoint)? ?${identifier}$`, 'i')],
];

function control(plain: string, keyword: string): Statement | undefined {
  if (end.test(plain)) return { kind: 'commit' };
  if (undo.test(plain)) return { kind: 'rollback' };
  const modes = begin.exec(plain)?.[1];
  if (modes !== undefined) {
    demandOurModes(modes);
    return { kind: keyword === 'set' ? 'other' : 'begin' };
  }
  for (const [kind, pattern] of named) {
    const name = pattern.exec(plain)?.[1];
    if (name !== undefined) return { kind, name: demandTheirs(folded(name)) };
  }
  if (/^(?:begin|start|commit|end|rollback|abort|savepoint|release)$/.test(keyword))
    throw refusal(plain.slice(0, 40), 'a transaction in tx is a savepoint of the work’s own transaction');
  return undefined;
}

/** The lock's transaction has begun already: what it can't become any more is refused, and not ignored. */
function demandOurModes(modes: string): void {
  const rest = modes.replace(/isolation level read committed|read write|not deferrable|[, ]/gi, '');
  if (rest === '') return;
  throw new ForbiddenStatement(
    `a transaction with “${modes.trim()}” is not for tx: it is a savepoint in the lock’s own transaction, ` +
      'which is READ COMMITTED, READ WRITE; leave the mode out, or open a connection of the job’s own',
  );
}

/** The savepoint around the work, and those that stand for a BEGIN. */
function demandTheirs(name: string): string {
  if (name === 'work' || name.startsWith(beginPrefix))
    throw new ForbiddenStatement(`the savepoint ${name} is the coordinator’s: take another name`);
  return name;
}

/** Of the savepoints that stand for a BEGIN. */
export const beginPrefix = 'cronce_';

function folded(name: string): string {
  return name.startsWith('"')
    ? name.slice(1, -1).replaceAll('""', '"')
    : name.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
}

function otherwise(plain: string, keyword: string): Statement {
  if (keyword === 'set' && !/^set (?:local|constraints|transaction)\b/i.test(plain))
    throw refusal('set without local', 'it would leak to the next user of a pooled connection');
  if (keyword === 'declare' && /\bwith hold\b/i.test(plain)) throw refusal('declare … with hold', pooled);
  return { kind: 'other' };
}

// As the server's scanner cuts a text: E'…' knows backslashes, $tag$…$tag$ quotes, a comment ends with CR too.
// A doubled quote needs no rule: 'a''b' is read as two literals, which comes to the same here.
const token = new RegExp(
  [
    String.raw`(?<comment>--[^\n\r]*)`,
    String.raw`(?<open>\/\*)`,
    String.raw`(?<text>e'(?:[^'\\]|\\[^]|'')*'|'[^']*'|\$([a-z_\u0080-\uffff][\w\u0080-\uffff]*)?\$[^]*?\$\4\$)`,
    String.raw`"(?:[^"]|"")*"`,
    String.raw`[a-z_\u0080-\uffff][\w$\u0080-\uffff]*`,
    String.raw`[^]`,
  ].join('|'),
  'giy',
);

/** The text with its comments (they nest) as a space and its literals empty. */
function skeleton(text: string): string {
  let plain = '';
  token.lastIndex = 0;
  for (let found = token.exec(text); found; found = token.exec(text)) {
    const { comment, open, text: literal } = found.groups ?? {};
    if (open !== undefined) token.lastIndex = endOfComment(text, token.lastIndex);
    plain += comment !== undefined || open !== undefined ? ' ' : literal !== undefined ? `''` : found[0];
  }
  return plain;
}

function endOfComment(text: string, from: number): number {
  const mark = /\/\*|\*\//g;
  mark.lastIndex = from;
  for (let depth = 1; depth > 0;) {
    const found = mark.exec(text);
    if (!found) return text.length;
    depth += found[0] === '/*' ? 1 : -1;
  }
  return mark.lastIndex;
}

/** What a job may have left on the session itself, where it outlives the transaction. */
export interface Traces {
  readonly locks: boolean;
  readonly temporary: boolean;
  /** Settings by name; `null` for one whose name the text doesn't tell. */
  readonly settings: readonly (string | null)[];
}

/** Told from the text alone, DO blocks included: what a function of the database does inside is not seen. */
export function tracesOf(text: string, values: readonly unknown[]): Traces {
  return {
    locks: /\bpg_(?:try_)?advisory_lock(?:_shared)?\b/i.test(text),
    temporary: /\b(?:temp|temporary|pg_temp)\b/i.test(text) && !/\bon\s+commit\s+drop\b/i.test(text),
    settings: [...setByFunction(text, values), ...setInBlock(text)],
  };
}

function setByFunction(text: string, values: readonly unknown[]): (string | null)[] {
  return [...text.matchAll(/\bset_config\s*\(/gi)].flatMap((call) => {
    const [name, , local] = argumentsFrom(text, call.index + call[0].length).map((argument) =>
      valueOf(argument, values),
    );
    return isTrue(local) ? [] : [typeof name === 'string' ? name : null];
  });
}

/** `SET x = …` in a DO block or in dynamic SQL; columns of an UPDATE look alike, and are no setting's names. */
function setInBlock(text: string): string[] {
  if (!/^\W*do\b/i.test(text.trimStart())) return [];
  const pattern = /\bset\s+(?:session\s+)?(?!local\b|session\b)([a-z_][\w.]*)\s*(?:=|:=|\bto\b)/gi;
  return [...text.matchAll(pattern)].map((found) => found[1] ?? '');
}

function argumentsFrom(text: string, from: number): string[] {
  const found = [''];
  let depth = 0;
  token.lastIndex = from;
  for (let part = token.exec(text); part; part = token.exec(text)) {
    const [piece] = part;
    if (piece === ')' && depth-- === 0) break;
    if (piece === '(') depth++;
    if (piece === ',' && depth === 0) found.push('');
    else found.push((found.pop() ?? '') + piece);
  }
  return found.map((argument) => argument.trim());
}

/** Of a literal or a parameter; undefined where only the server could tell. */
function valueOf(argument: string, values: readonly unknown[]): unknown {
  const literal = /^e?'([^']*)'(?:\s*::\s*\w+)?$/i.exec(argument)?.[1];
  if (literal !== undefined) return literal;
  const parameter = /^\$(\d+)(?:\s*::\s*\w+)?$/.exec(argument)?.[1];
  if (parameter !== undefined) return values[Number(parameter) - 1];
  return /^(?:true|false)$/i.test(argument) ? argument.toLowerCase() === 'true' : undefined;
}

function isTrue(value: unknown): boolean {
  return (
    value === true || (typeof value === 'string' && /^(?:t|tr|tru|true|y|yes|on|1)$/i.test(value.trim()))
  );
}
