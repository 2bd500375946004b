import type { PutEventsRequestEntry } from '@aws-sdk/client-eventbridge';
import type { Sink } from '../publish.ts';
import type { RunRecord } from '../run.ts';

export interface EventBridgeOptions {
  /** Name or ARN. */
  readonly bus: string;
  /** Another endpoint than AWS's own, for tests and local use. */
  readonly endpoint?: string;
}

/** EventBridge's limit for a whole call is 256 KB. */
const largestCall = 240 * 1024;

/**
 * Sends each outcome as one event: source `cronce`, detail-type `Run succeeded` and so on, detail = the run record.
 * An entry that failed inside an answer of 200 has not arrived.
 */
export function eventBridgeSink({ bus, endpoint }: EventBridgeOptions): Sink {
  return {
    name: `eventbridge:${bus}`,
    async send(records, signal) {
      // Loaded here and not before: a deployment without a bus never pays for it.
      const { EventBridgeClient, PutEventsCommand } = await import('@aws-sdk/client-eventbridge');
      const client = new EventBridgeClient({
        maxAttempts: 2,
        ...(endpoint === undefined ? {} : { endpoint }),
      });
      const arrived = new Set<string>();
      try {
        for (const batch of calls(records.map((run) => ({ run, entry: entryOf(run, bus) })))) {
          const command = new PutEventsCommand({ Entries: batch.map(({ entry }) => entry) });
          const { Entries = [] } = await client.send(command, { abortSignal: signal });
          batch.forEach(({ run }, index) => {
            if (Entries[index]?.EventId !== undefined && Entries[index].ErrorCode === undefined)
              arrived.add(run.id);
          });
        }
      } catch (error) {
        if (arrived.size === 0) throw error;
      } finally {
        client.destroy();
      }
      return arrived;
    },
  };
}

interface Addressed {
  readonly run: RunRecord;
  readonly entry: PutEventsRequestEntry;
}

function entryOf(run: RunRecord, bus: string): PutEventsRequestEntry {
  const whole = JSON.stringify(run);
  const fits = Buffer.byteLength(whole) < largestCall - 1_024;
  return {
    Source: 'cronce',
    DetailType: `Run ${run.status}`,
    Detail: fits
      ? whole
      : JSON.stringify({
          ...run,
          output: { cut: 'too large for an event' },
          params: { cut: 'too large for an event' },
        }),
    EventBusName: bus,
    Time: new Date(run.finishedAt ?? run.receivedAt),
  };
}

function calls(all: readonly Addressed[]): Addressed[][] {
  const batches: Addressed[][] = [[]];
  let bytes = 0;
  for (const one of all) {
    const size = Buffer.byteLength(one.entry.Detail ?? '') + 256;
    if (bytes + size > largestCall && batches.at(-1)?.length) {
      batches.push([]);
      bytes = 0;
    }
    batches.at(-1)?.push(one);
    bytes += size;
  }
  return batches;
}
