/**
 * What a job's params must be like, in the words of whatever library its author has (Standard Schema: Zod, Valibot,
 * ArkType and more). Asked twice: by the HTTP API, so that a wrong request is refused with the place; and by the run, since
 * events come from elsewhere too.
 */
import type { StandardSchemaV1 } from '@standard-schema/spec';
import { captureError } from './capture.ts';
import { PermanentError, type Json } from './run.ts';

/** Anything of Standard Schema v1 whose output is a P. */
export type ParamsSchema<P> = StandardSchemaV1<unknown, P> | StandardSchemaV1<never, P>;

/** One thing that is wrong with params, and where: an RFC 6901 pointer into them, '' for the whole. */
export interface ParamsIssue {
  readonly pointer: string;
  readonly message: string;
}

/** A run's params don't fit its job's schema: it fails for good, since no other attempt would bring others. */
export class ParamsError extends PermanentError {
  override readonly name = 'ParamsError';
  readonly issues: readonly ParamsIssue[];

  constructor(issues: readonly ParamsIssue[]) {
    super(`params don't fit the job's schema: ${issues.map(inWords).join('; ')}`);
    this.issues = issues;
  }
}

export type Checked = { readonly params: unknown } | { readonly issues: readonly ParamsIssue[] };

/** Shown of them; a list of a thousand wrong entries is told by its first. */
const issuesAtMost = 10;

/**
 * What the schema makes of params: its output may be another value than what was given. A delivery that brings none is
 * asked about as `undefined`, which is what defaults and `optional` answer to, and then as `null`.
 */
export async function checkParams(schema: ParamsSchema<unknown> | null, given: Json): Promise<Checked> {
  if (schema === null) return { params: given };
  const asked = await ask(schema, given === null ? undefined : given);
  if (given !== null || 'params' in asked) return asked;
  const asNull = await ask(schema, null);
  return 'params' in asNull ? asNull : asked;
}

/** @throws {ParamsError} */
export async function demandParams(schema: ParamsSchema<unknown> | null, given: Json): Promise<unknown> {
  const checked = await checkParams(schema, given);
  if ('issues' in checked) throw new ParamsError(checked.issues);
  return checked.params;
}

async function ask(schema: ParamsSchema<unknown>, given: unknown): Promise<Checked> {
  const result = await answer(schema, given);
  if (result.issues === undefined) return { params: result.value };
  return { issues: [...result.issues].slice(0, issuesAtMost).map(issueOf) }; // it may be a list of their own kind
}

/** A check or a transform of the author's own may throw: what it says is what is wrong. */
async function answer(
  schema: ParamsSchema<unknown>,
  given: unknown,
): Promise<StandardSchemaV1.Result<unknown>> {
  try {
    return await schema['~standard'].validate(given);
  } catch (error) {
    return { issues: [{ message: captureError(error).message }] };
  }
}

function issueOf({ message, path = [] }: StandardSchemaV1.Issue): ParamsIssue {
  const keys = Array.from(path, (part) => String(typeof part === 'object' ? part.key : part));
  const pointer = keys.map((key) => `/${key.replaceAll('~', '~0').replaceAll('/', '~1')}`).join('');
  return { pointer, message };
}

function inWords({ pointer, message }: ParamsIssue): string {
  return pointer === '' ? message : `${pointer}: ${message}`;
}

/** Whether it says at once that a delivery without params can't be; one that must wait to say so is not waited for. */
export function refusesNone(schema: ParamsSchema<unknown>): boolean {
  return [undefined, null].every((none) => {
    try {
      const result = schema['~standard'].validate(none);
      if (!(result instanceof Promise)) return result.issues !== undefined;
      result.catch(() => undefined); // what it answers is of no interest here
      return false;
    } catch {
      return true;
    }
  });
}

export function isParamsSchema(given: unknown): given is ParamsSchema<unknown> {
  if ((typeof given !== 'object' && typeof given !== 'function') || given === null) return false;
  const standard = (given as Partial<StandardSchemaV1>)['~standard'];
  return standard?.version === 1 && typeof standard.validate === 'function';
}
