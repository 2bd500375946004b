import { answerOf, toRecord } from './postgres/record.ts';
import type { Session } from './postgres/session.ts';
import type { Logger, RunRecord } from './run.ts';

/**
 * This step's secret: how an outcome reaches those who want to know. The run record is the outbox: what could not be
 * sent stays marked there, and goes out with a later invocation. At least once; the run's id deduplicates.
 */

/** Where outcomes go, besides the log. */
export interface Sink {
  /** Stored with each record that has reached it; never rename one. */
  readonly name: string;
  /** Sends each record; answers the ids that have certainly arrived. May throw, if none has. */
  send(records: readonly RunRecord[], signal: AbortSignal): Promise<ReadonlySet<string>>;
}

export interface PublishOptions {
  readonly sinks: readonly Sink[];
  readonly logger: Logger;
  /** For all sinks of one relay together, ms: so long a dead bus may delay a run, and no longer. */
  readonly timeoutMs: number;
}

/** EventBridge takes ten entries a call. */
const batch = 10;

/** The one structured log line of an outcome: everything but what the job was given and what it answered. */
export function logOutcome(run: RunRecord, logger: Logger): void {
  const { params, output, error, ...fields } = run;
  const line = {
    run: error
      ? { ...fields, error: { name: error.name, message: error.message, code: error.code } }
      : fields,
  };
  const what = `${run.job} ${run.status}${run.skipReason ? ` (${run.skipReason})` : ''}`;
  if (
    run.status === 'failed' ||
    run.status === 'timed_out' ||
    run.status === 'lost' ||
    run.status === 'missed'
  )
    logger.error(what, line);
  else logger.info(what, line);
}

/**
 * Publishes `own` and, with it, what others had to leave behind; answers how many records were sent. Never throws:
 * a sink that fails fails no run.
 */
export async function relay(session: Session, own: string | null, options: PublishOptions): Promise<number> {
  if (options.sinks.length === 0) return 0;
  try {
    return await relayBatch(session, own, options);
  } catch (error) {
    options.logger.warn('outcomes could not be published; a later invocation will', { error: String(error) });
    return 0;
  }
}

interface Due {
  readonly run: RunRecord;
  readonly sentTo: readonly string[];
}

async function relayBatch(session: Session, own: string | null, options: PublishOptions): Promise<number> {
  const due = await takeDue(session, own, options.timeoutMs);
  const sent = await deliver(due, options);
  await session.send(
    `SELECT cronce.mark_published(${session.literal(JSON.stringify(sent))}::jsonb); COMMIT`,
    options.timeoutMs,
  );
  return sent.filter(({ done }) => done).length;
}

async function takeDue(session: Session, own: string | null, timeoutMs: number): Promise<Due[]> {
  const id = own === null ? 'NULL' : session.literal(own);
  const results = await session.send(
    `BEGIN ISOLATION LEVEL READ COMMITTED; ` +
      `SELECT set_config('idle_in_transaction_session_timeout', '${timeoutMs * 2 + 5_000}', true); ` +
      `SELECT cronce.take_unpublished(${id}, ${batch}) AS due`,
    timeoutMs,
  );
  return answerOf<Due[]>(results, 'due').map(({ run, sentTo }) => ({ run: toRecord(run), sentTo }));
}

async function deliver(due: readonly Due[], options: PublishOptions) {
  const signal = AbortSignal.timeout(options.timeoutMs);
  const arrived = await Promise.all(
    options.sinks.map(async (sink) => arrivedAt(sink, due, signal, options.logger)),
  );
  return due.map(({ run, sentTo }) => {
    const now = options.sinks.filter((_, index) => arrived[index]?.has(run.id)).map(({ name }) => name);
    const all = new Set([...sentTo, ...now]);
    return { id: run.id, sentTo: [...all], done: options.sinks.every(({ name }) => all.has(name)) };
  });
}

async function arrivedAt(sink: Sink, due: readonly Due[], signal: AbortSignal, logger: Logger) {
  const records = due.filter(({ sentTo }) => !sentTo.includes(sink.name)).map(({ run }) => run);
  if (records.length === 0) return new Set<string>();
  try {
    return await orAborted(sink.send(records, signal), signal);
  } catch (error) {
    logger.warn(`sink ${sink.name} did not take outcomes; they stay marked for a later invocation`, {
      runs: records.map(({ id }) => id),
      error: String(error),
    });
    return new Set<string>();
  }
}

/** A sink that does not heed its signal is left behind. */
async function orAborted<T>(answer: Promise<T>, signal: AbortSignal): Promise<T> {
  answer.catch(() => undefined);
  const aborted = new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => {
      reject(signal.reason as Error);
    });
  });
  return Promise.race([answer, aborted]);
}
