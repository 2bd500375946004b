import { begin, limitsSql, transaction } from './postgres/call.ts';
import { answerOf, toRecord } from './postgres/record.ts';
import type { Session } from './postgres/session.ts';
import { unnamedDeployment, type Logger, type RunRecord } from './run.ts';

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
  /** Besides the log, which is always one. */
  readonly sinks: readonly Sink[];
  readonly logger: Logger;
  /** For all sinks of one relay together, ms: so long a dead bus may delay a run, and no longer. */
  readonly timeoutMs: number;
  /** Whose outcomes: service and stage. */
  readonly deployment?: string;
}

/** The log is a sink like any other: an outcome is told when its line is written, and not when its row is. */
const logName = 'log';

/** EventBridge takes ten entries a call. */
const batch = 10;
/** The log takes any number. */
const logBatch = 200;

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
 * Tells what this invocation has recorded (its own run, the dead predecessors it settled), and with it what others had to
 * leave behind. Never throws: a sink that fails fails no run. With the log alone it costs no round trip: the stamp goes out
 * with the goodbye, and should it get lost, the sweep tells once more.
 */
export async function publish(
  session: Session,
  runs: readonly RunRecord[],
  options: PublishOptions,
): Promise<void> {
  const { deployment: ours = unnamedDeployment } = options;
  const own = runs.filter(({ deployment }) => deployment === ours); // another's dead run is told by its own sweep
  for (const run of own) logOutcome(run, options.logger);
  const ids = own.map(({ id }) => id);
  if (options.sinks.length > 0) await relay(session, ids, options);
  else if (!session.lost.aborted) await session.farewell(stampSql(ids));
}

function stampSql(ids: readonly string[]): string {
  const stamp = `SELECT cronce.mark_told('{${ids.join(',')}}')`;
  const limits = { statementMs: markMs, lockMs: markMs / 2 };
  return `ROLLBACK; ${transaction(['SET LOCAL synchronous_commit = off', stamp], limits)}`;
}

/**
 * Publishes what is due, `told` first, of which the log has its lines already; answers how many records are done with.
 * Never throws.
 */
export async function relay(
  session: Session,
  told: readonly string[],
  options: PublishOptions,
): Promise<number> {
  try {
    return await relayBatch(session, told, options);
  } catch (error) {
    options.logger.warn('outcomes could not be published; a later invocation will', { error: String(error) });
    return 0;
  }
}

interface Due {
  readonly run: RunRecord;
  readonly sentTo: readonly string[];
}

async function relayBatch(
  session: Session,
  told: readonly string[],
  options: PublishOptions,
): Promise<number> {
  const due = await takeDue(session, told, options);
  const sent = await deliver(due, told, options);
  await session.send(
    `SELECT cronce.mark_published(${session.literal(JSON.stringify(sent))}::jsonb); COMMIT`,
    Math.max(options.timeoutMs, markMs),
  );
  return sent.filter(({ done }) => done).length;
}

/** The least that a batch's stamps may take, ms: what was sent and is not stamped is sent again. */
const markMs = 2_000;

async function takeDue(session: Session, told: readonly string[], options: PublishOptions): Promise<Due[]> {
  const { timeoutMs, deployment = unnamedDeployment, sinks } = options;
  const limits = { statementMs: timeoutMs, lockMs: timeoutMs * 0.8, idleMs: timeoutMs * 2 + 5_000 };
  const sql = [
    'ROLLBACK',
    begin,
    limitsSql(limits),
    `SELECT cronce.take_unpublished('{${told.join(',')}}', ${sinks.length > 0 ? batch : logBatch}, ${session.literal(deployment)}) AS due`,
  ].join('; ');
  const results = await session.send(sql, timeoutMs);
  return answerOf<Due[]>(results, 'due').map(({ run, sentTo }) => ({ run: toRecord(run), sentTo }));
}

async function deliver(due: readonly Due[], told: readonly string[], options: PublishOptions) {
  const signal = AbortSignal.timeout(options.timeoutMs);
  for (const { run, sentTo } of due)
    if (!sentTo.includes(logName) && !told.includes(run.id)) logOutcome(run, options.logger);
  const arrived = await Promise.all(
    options.sinks.map(async (sink) => arrivedAt(sink, due, signal, options.logger)),
  );
  return due.map(({ run, sentTo }) => {
    const now = options.sinks.filter((_, index) => arrived[index]?.has(run.id)).map(({ name }) => name);
    const all = new Set([...sentTo, logName, ...now]);
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
