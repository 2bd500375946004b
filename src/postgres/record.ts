import type { QueryResult } from './driver.ts';
import type { RunRecord } from '../run.ts';

/** The one column named `column` among a message's answers. */
export function answerOf<T>(results: readonly QueryResult[], column: string): T {
  const result = results.find(({ fields }) => fields[0]?.name === column);
  return (result?.rows[0] as Record<string, T>)[column] as T;
}

/** `cronce.record` as stored → RunRecord: times in ISO 8601 with Z, whatever the session's time zone. */
export function toRecord(stored: RunRecord): RunRecord {
  return {
    ...stored,
    scheduledFor: isoTime(stored.scheduledFor),
    receivedAt: isoTime(stored.receivedAt),
    startedAt: stored.startedAt && isoTime(stored.startedAt),
    finishedAt: stored.finishedAt && isoTime(stored.finishedAt),
    cancelRequestedAt: stored.cancelRequestedAt && isoTime(stored.cancelRequestedAt),
    publishedAt: stored.publishedAt && isoTime(stored.publishedAt),
  };
}

export function isoTime(stored: string): string {
  return new Date(stored).toISOString();
}
