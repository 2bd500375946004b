import type { PutEventsRequestEntry, PutEventsResultEntry } from '@aws-sdk/client-eventbridge';
import { refusalOf, wanting, type Refusal, type Report, type Sink, type Wanted } from './sink.ts';
import type { RunRecord } from '../run.ts';
import { bytes, recordWithin } from './fit.ts';

/** This module's secret: what EventBridge takes, and what its answers mean for each outcome. */

export interface EventBridgeOptions extends Wanted {
  /** Name or ARN. */
  readonly bus: string;
  /** Another endpoint than AWS's own, for tests and local use. */
  readonly endpoint?: string;
}

/** EventBridge's limits: 256 KB for one entry as for a whole call, here with some room, and ten entries a call. */
const largest = 240 * 1024;
const entriesAtMost = 10;

/**
 * Sends each outcome as one event: source `cronce`, detail-type `Run succeeded` and so on, detail = the run record.
 * An entry that failed inside an answer of 200 has not arrived. A call that is refused because of what is in it is made
 * anew entry by entry, so that the one at fault is alone with it.
 */
export function eventBridgeSink({ bus, endpoint, ...wanted }: EventBridgeOptions): Sink {
  return {
    name: `eventbridge:${bus}`,
    wants: wanting(wanted),
    async send(records, signal, report) {
      // Loaded here and not before: a deployment without a bus never pays for it.
      const { EventBridgeClient, PutEventsCommand } = await import('@aws-sdk/client-eventbridge');
      const client = new EventBridgeClient({
        maxAttempts: 2,
        ...(endpoint === undefined ? {} : { endpoint }),
      });
      const put = async (entries: PutEventsRequestEntry[]) => {
        const sent = client.send(new PutEventsCommand({ Entries: entries }), { abortSignal: signal });
        return (await sent.catch(unlessAborted(signal))).Entries ?? [];
      };
      try {
        return await putAll(
          records.map((run) => ({ id: run.id, entry: entryOf(run, bus) })),
          put,
          report,
        );
      } finally {
        client.destroy();
      }
    },
  };
}

/** Why time was up says more than that a call was broken off. */
function unlessAborted(signal: AbortSignal): (error: unknown) => never {
  return (error) => {
    throw signal.aborted ? signal.reason : error;
  };
}

interface Addressed {
  readonly id: string;
  readonly entry: PutEventsRequestEntry;
}

type Put = (entries: PutEventsRequestEntry[]) => Promise<readonly PutEventsResultEntry[]>;

async function putAll(all: readonly Addressed[], put: Put, report: Report): Promise<Set<string>> {
  const arrived = new Set<string>();
  const waiting = calls(all);
  for (let call = waiting.shift(); call; call = waiting.shift())
    try {
      const answers = await put(call.map(({ entry }) => entry));
      for (const [index, { id }] of call.entries()) {
        const refusal = refusalIn(answers[index]);
        if (refusal) report(id, refusal);
        else arrived.add(id);
      }
    } catch (error) {
      const isOfEntries = isAnswer(error) && !ofTheBus.test(error.name);
      if (isOfEntries && call.length > 1) waiting.unshift(...call.map((one) => [one]));
      for (const { id } of isOfEntries ? call : [call, ...waiting].flat()) report(id, refusalOf(error));
      if (!isOfEntries) break; // the rest would fare no better
    }
  return arrived;
}

function refusalIn(answer: PutEventsResultEntry | undefined): Refusal | null {
  if (answer?.EventId !== undefined && answer.ErrorCode === undefined) return null;
  return {
    code: answer?.ErrorCode ?? 'NoAnswer',
    message: answer?.ErrorMessage ?? 'the bus did not say why',
  };
}

/** What any call would be answered now, whatever is in it. */
const ofTheBus =
  /Throttl|TooManyRequests|LimitExceeded|AccessDenied|NotAuthorized|Token|Signature|Credential|Authentication|ResourceNotFound|OperationDisabled/;

/** The bus has answered, and not the network or our own patience. */
function isAnswer(error: unknown): error is Error {
  const { $metadata } = error as { $metadata?: { httpStatusCode?: number } };
  return error instanceof Error && $metadata?.httpStatusCode !== undefined;
}

// --- what fits ----------------------------------------------------------------------------------

function entryOf(run: RunRecord, bus: string): PutEventsRequestEntry {
  return {
    Source: 'cronce',
    DetailType: `Run ${run.status}`,
    Detail: recordWithin(run, largest - 256),
    EventBusName: bus,
    Time: new Date(run.finishedAt ?? run.receivedAt),
  };
}

function calls(all: readonly Addressed[]): Addressed[][] {
  const batches: Addressed[][] = [];
  let room = 0;
  for (const one of all) {
    const size = bytes(one.entry.Detail) + 256;
    const last = batches.at(-1);
    if (last && size <= room && last.length < entriesAtMost) last.push(one);
    else {
      batches.push([one]);
      room = largest;
    }
    room -= size;
  }
  return batches;
}
