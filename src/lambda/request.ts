import { Problem } from '../http/problem.ts';

/**
 * This module's secret: how Lambda is told of an HTTP request. By an HTTP API or a function URL (payload 2.0), a REST API
 * (1.0) or a load balancer; each has its own way with paths, queries and headers that came twice. What comes of it is a
 * Request whose path begins at our root, whatever stage or mapping lies before that.
 *
 * Ours, and not hono/aws-lambda: that one knows nothing of what lies before the path, throws on what is no HTTP event,
 * and writes header values beyond ASCII in another way, so that two keys could become one.
 */
export interface Incoming {
  readonly request: Request;
  /** What lies before our root, such as `/prod`; mostly nothing. */
  readonly base: string;
  readonly source: string | null;
}

export interface LambdaAnswer {
  readonly statusCode: number;
  readonly headers: Readonly<Record<string, string>>;
  /** A load balancer that gives its headers so wants them so. */
  readonly multiValueHeaders?: Readonly<Record<string, readonly string[]>>;
  readonly body: string;
  readonly isBase64Encoded: boolean;
}

/** @throws {Problem} 400 for what is no HTTP request of any kind, or can't be one; 405 */
export function incomingOf(event: unknown): Incoming {
  const fields = fieldsOf(event);
  const context = fieldsOf(fields['requestContext']);
  const http = fieldsOf(context['http']);
  const { method, path, query } = headOf(fields, context, http);
  if (method === undefined || path === undefined || !query.isWellFormed()) throw foreign();
  const headers = headersOf(fields);
  const base = baseOf(fields, context, path);
  return {
    request: new Request(urlOf(context, headers, path.slice(base.before), query), {
      method: methodOf(method),
      headers,
      ...bodyOf(fields, method, headers),
    }),
    base: base.shown,
    source: sourceOf(context, http, headers),
  };
}

export async function lambdaAnswer(response: Response, event: unknown): Promise<LambdaAnswer> {
  const headers = Object.fromEntries(response.headers);
  const isMulti =
    'elb' in fieldsOf(fieldsOf(event)['requestContext']) && 'multiValueHeaders' in fieldsOf(event);
  const lists = Object.fromEntries([...response.headers].map(([name, value]) => [name, [value]]));
  return {
    statusCode: response.status,
    headers,
    ...(isMulti ? { multiValueHeaders: lists } : {}),
    body: await response.text(),
    isBase64Encoded: false,
  };
}

function foreign(): Problem {
  const detail = 'That is no HTTP request of an HTTP API, a REST API, a function URL or a load balancer.';
  return new Problem(400, 'foreign_event', detail);
}

type Fields = Readonly<Record<string, unknown>>;

function fieldsOf(value: unknown): Fields {
  return typeof value === 'object' && value !== null ? (value as Fields) : {};
}

function textOf(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined;
}

interface Head {
  readonly method: string | undefined;
  readonly path: string | undefined;
  readonly query: string;
}

function headOf(fields: Fields, context: Fields, http: Fields): Head {
  if ('rawPath' in fields) {
    const query = textOf(fields['rawQueryString']) ?? '';
    return { method: textOf(http['method']), path: textOf(fields['rawPath']), query };
  }
  const query = queryOf(fields, 'elb' in context);
  return { method: textOf(fields['httpMethod']), path: textOf(fields['path']), query };
}

/** A load balancer leaves it as it was sent; a REST API has decoded it. */
function queryOf(fields: Fields, isRaw: boolean): string {
  const many = Object.entries(fieldsOf(fields['multiValueQueryStringParameters']));
  const all = many.length > 0 ? many : Object.entries(fieldsOf(fields['queryStringParameters']));
  const pairs = all.flatMap(([name, values]) => [values].flat().map((value) => [name, textOf(value) ?? '']));
  // encodeURIComponent throws on these; the caller refuses them.
  if (isRaw || !pairs.flat().every((text) => text.isWellFormed()))
    return pairs.map((pair) => pair.join('=')).join('&');
  return pairs.map((pair) => pair.map(encodeURIComponent).join('=')).join('&');
}

/** No Request may have these, and no route has them. */
const unknownToRequest = ['CONNECT', 'TRACE', 'TRACK'];

function methodOf(method: string): string {
  if (/^[A-Za-z-]{1,20}$/.test(method) && !unknownToRequest.includes(method.toUpperCase())) return method;
  throw new Problem(405, 'method_not_allowed', 'That method is none that anything here takes.', {
    headers: { allow: 'GET, HEAD, POST' },
  });
}

/**
 * Before our root lies the stage, unless it is the default one (payload 2.0 has it in the path, 1.0 beside it), or what a
 * domain maps to this API: then the route's `{proxy+}` says what is left.
 */
function baseOf(fields: Fields, context: Fields, path: string): { before: number; shown: string } {
  const stage = `/${textOf(context['stage']) ?? ''}`;
  if ('rawPath' in fields && stage !== '/' && (path === stage || path.startsWith(`${stage}/`)))
    return baseUpTo(path, stage.length);
  const proxy = textOf(fieldsOf(fields['pathParameters'])['proxy']);
  const before = proxy !== undefined && path.endsWith(`/${proxy}`) ? path.length - proxy.length - 1 : 0;
  const outer = textOf(context['path'])?.replace(/\/$/, '') ?? '';
  const inner = path.replace(/\/$/, '');
  if (before > 0 || !outer.endsWith(inner)) return baseUpTo(path, before);
  return { before, shown: shown(outer.slice(0, outer.length - inner.length)) };
}

function baseUpTo(path: string, before: number): { before: number; shown: string } {
  return { before, shown: shown(path.slice(0, before)) };
}

/** It goes into links; of anything odd there are none. */
function shown(base: string): string {
  return /^(?:\/[\w.~%-]+)*$/.test(base) ? base : '';
}

function urlOf(context: Fields, headers: Headers, path: string, query: string): string {
  const host = textOf(context['domainName']) ?? headers.get('host') ?? '';
  const isHost = /^[^/?#@\\\s]+$/.test(host) && URL.canParse(`https://${host}/`);
  const rooted = path.startsWith('/') ? path : `/${path}`;
  const rest = escaped(rooted, /[\0- ?#\\]/g) + (query === '' ? '' : `?${escaped(query, /[\0- #]/g)}`);
  return `https://${isHost ? host : 'localhost'}${rest}`;
}

/** What was decoded before it came here must not begin another part of a URL, nor be left out as blank. */
function escaped(text: string, what: RegExp): string {
  return text.replace(what, encodeURIComponent);
}

function headersOf(fields: Fields): Headers {
  const headers = new Headers();
  const many = Object.entries(fieldsOf(fields['multiValueHeaders']));
  const all = many.length > 0 ? many : Object.entries(fieldsOf(fields['headers']));
  for (const [name, values] of all)
    for (const value of [values].flat()) if (typeof value === 'string') append(headers, name, value);
  const cookies = fields['cookies'];
  if (Array.isArray(cookies)) append(headers, 'cookie', cookies.map(String).join('; '));
  return headers;
}

function append(headers: Headers, name: string, value: string): void {
  try {
    headers.append(name, value);
  } catch (cause) {
    throw new Problem(400, 'bad_header', 'A header has a name or a value that HTTP doesn’t know.', { cause });
  }
}

/** A body sent along with a GET means nothing, and a Request would not take it. */
function bodyOf(fields: Fields, method: string, headers: Headers): { body?: Uint8Array<ArrayBuffer> } {
  headers.delete('transfer-encoding');
  headers.delete('content-length');
  const body = textOf(fields['body']) ?? '';
  if (body === '' || ['GET', 'HEAD'].includes(method.toUpperCase())) return {};
  const isBinary = fields['isBase64Encoded'] === true;
  if (!isBinary && !body.isWellFormed()) throw new Problem(400, 'not_utf8', 'The body is not UTF-8.');
  const bytes = Buffer.from(body, isBinary ? 'base64' : 'utf8');
  headers.set('content-length', String(bytes.length));
  return { body: new Uint8Array(bytes) };
}

/** The load balancer adds who called to what the caller said of that, at the end. */
function sourceOf(context: Fields, http: Fields, headers: Headers): string | null {
  const ofBalancer = 'elb' in context ? headers.get('x-forwarded-for')?.split(',').at(-1)?.trim() : undefined;
  const source = textOf(http['sourceIp']) ?? textOf(fieldsOf(context['identity'])['sourceIp']) ?? ofBalancer;
  return source === undefined ? null : source.slice(0, 60);
}
