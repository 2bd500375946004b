/** How much of a record goes where not all of it fits. */
import { captureText } from '../capture.ts';
import type { RunError, RunRecord } from '../run.ts';

/** The record, or as much of it as fits: what was cut says so, the largest first, and `GET /runs/:id` has it whole. */
export function recordWithin(run: RunRecord, most: number): string {
  let text = JSON.stringify(run);
  let shown: object = run;
  const cuts = (['params', 'output', 'error'] as const)
    .map((field) => ({ field, size: bytes(JSON.stringify(run[field])) }))
    .sort((one, other) => other.size - one.size);
  for (const { field } of cuts) {
    if (bytes(text) <= most) return text;
    shown = { ...shown, [field]: field === 'error' && run.error ? errorCut(run.error) : { cut } };
    text = JSON.stringify(shown);
  }
  return bytes(text) <= most ? text : JSON.stringify(shown, (_key, value: unknown) => textCut(value));
}

const cut = 'too large for an event';

function errorCut({ name, message, code }: RunError) {
  return {
    name: textCut(name),
    message: textCut(message),
    ...(code === undefined ? {} : { code: textCut(code) }),
    cut,
  };
}

function textCut<T>(value: T) {
  return typeof value === 'string' && value.length > 1_000
    ? `${captureText(value.slice(0, 1_000))}… (cut: ${cut})`
    : value;
}

export function bytes(text: string | undefined): number {
  return Buffer.byteLength(text ?? '');
}
