import { STATUS_CODES } from 'node:http';
import { HTTPException } from 'hono/http-exception';
import { PostgresError, SchemaMismatch } from '../postgres/errors.ts';

/**
 * This module's secret: how an error looks from outside. Every answer of 400 and above is a problem of RFC 9457,
 * told apart by its `code`. Nothing of a request is repeated in it: a token sent in the wrong place stays unseen.
 */

interface ProblemOptions {
  readonly headers?: Readonly<Record<string, string>>;
  /** Further members, such as the names that would have been right. */
  readonly extensions?: Readonly<Record<string, unknown>>;
  /** For the log only. */
  readonly cause?: unknown;
}

export class Problem extends Error {
  override readonly name = 'Problem';
  readonly status: number;
  readonly code: string;
  readonly #options: ProblemOptions;

  constructor(status: number, code: string, detail: string, options: ProblemOptions = {}) {
    super(detail, 'cause' in options ? { cause: options.cause } : undefined);
    this.status = status;
    this.code = code;
    this.#options = options;
  }

  response(): Response {
    const { extensions, headers } = this.#options;
    const title = STATUS_CODES[this.status] ?? 'Error';
    const { status, code, message: detail } = this;
    const body = JSON.stringify({ type: 'about:blank', title, status, code, detail, ...extensions });
    return new Response(body, {
      status,
      headers: { 'content-type': 'application/problem+json', ...headers },
    });
  }
}

/** What any error is to a client. What went wrong inside is for the log, as the problem's cause. */
export function problemOf(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof SchemaMismatch)
    return new Problem(
      503,
      'schema_mismatch',
      'The database’s schema and this code do not fit; run the migrations.',
      {
        cause: error,
      },
    );
  if (error instanceof PostgresError)
    return new Problem(
      503,
      'database_unavailable',
      'The database did not answer as it should; the log says more.',
      {
        cause: error,
        headers: { 'retry-after': '5' },
      },
    );
  if (error instanceof HTTPException && error.status < 500)
    return new Problem(error.status, 'bad_request', 'The request could not be read.', { cause: error });
  return new Problem(500, 'internal', 'Something went wrong on our side; the log says what.', {
    cause: error,
  });
}
