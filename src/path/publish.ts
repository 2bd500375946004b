import { captureText } from '../capture.ts';
import { begin, call, limitsSql, transaction } from '../postgres/call.ts';
import { answerOf, toRecord } from '../postgres/record.ts';
import type { Session } from '../postgres/session.ts';
import { refusalOf, type Refusal, type Sink } from '../sinks/sink.ts';
import { Observers } from '../observe/observers.ts';
import { unnamedDeployment, type Logger, type PublishError, type RunRecord } from '../run.ts';

/**
 * This step's secret: how an outcome reaches those who want to know. The run record is the outbox: what could not be
 * sent stays marked there, and goes out with a later invocation. At least once; the run's id deduplicates.
 */

export interface PublishOptions {
  /** Besides the log, which is always one. */
  readonly sinks: readonly Sink[];
  readonly logger: Logger;
  /** Who else sees what becomes of runs. */
  readonly observers?: Observers;
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

/**
 * Tells what this invocation has recorded (its own run, the dead predecessors it settled), and with it what others had to
 * leave behind. Never throws: a sink that fails fails no run. With the log alone it costs no round trip, with sinks one: the
 * stamp goes out with the goodbye, and should it get lost, the sweep tells once more.
 */
export async function publish(
  session: Session,
  runs: readonly RunRecord[],
  options: PublishOptions,
): Promise<void> {
  const { deployment: ours = unnamedDeployment } = options;
  const own = runs.filter(({ deployment }) => deployment === ours); // another's dead run is told by its own sweep
  const { observers = new Observers(options.logger) } = options;
  for (const run of own) observers.tell('recorded', run);
  const ids = own.map(({ id }) => id);
  if (options.sinks.length > 0) await relay(session, ids, options, 'farewell');
  else if (!session.lost.aborted) await session.farewell(stampSql(session, ids));
}

/** Of uuids, as an array's text. */
function listOf(ids: readonly string[]): string {
  return `{${ids.join(',')}}`;
}

function stampSql(session: Session, ids: readonly string[]): string {
  const stamp = `SELECT ${call(session, 'mark_told', listOf(ids))}`;
  const limits = { statementMs: markMs, lockMs: markMs / 2 };
  return `ROLLBACK; ${transaction(['SET LOCAL synchronous_commit = off', stamp], limits)}`;
}

/** What became of a batch, in numbers of records. */
export interface Relayed {
  /** Found waiting. */
  readonly taken: number;
  /** Done with: each sink has it. */
  readonly done: number;
}

/**
 * Publishes what is due, `told` first, of which the log has its lines already. What a sink did not take is tried again by
 * itself, later each time, up to `triesAtMost`. Never throws.
 * @param stamping by a farewell, nobody waits for what is then kept of it: should it get lost, it is all sent once more
 */
export async function relay(
  session: Session,
  told: readonly string[],
  options: PublishOptions,
  stamping: 'send' | 'farewell' = 'send',
): Promise<Relayed> {
  try {
    return await relayBatch(session, told, options, stamping);
  } catch (error) {
    options.logger.warn('outcomes could not be published; a later invocation will', { error: String(error) });
    return { taken: 0, done: 0 };
  }
}

/**
 * How often a record is tried before it is given up: the intervals grow from 10 s to an hour (`mark_published`), so that
 * is after some four days, and well within the least retention.
 */
export const triesAtMost = 100;

interface Due {
  readonly run: RunRecord;
  readonly sentTo: readonly string[];
  /** Tries of before. */
  readonly attempts: number;
}

/** What is to be kept of one record's try; as `mark_published` takes it. */
interface Stamp {
  readonly id: string;
  readonly sentTo: readonly string[];
  readonly done: boolean;
  readonly givenUp: boolean;
  readonly error: PublishError | null;
}

async function relayBatch(
  session: Session,
  told: readonly string[],
  options: PublishOptions,
  stamping: 'send' | 'farewell',
): Promise<Relayed> {
  const due = await takeDue(session, told, options);
  const stamps = await deliver(due, told, options);
  const stamp = `SELECT ${call(session, 'mark_published', { json: stamps })}; COMMIT`;
  if (stamping === 'farewell') await session.farewell(stamp);
  else await session.send(stamp, Math.max(options.timeoutMs, markMs));
  for (const { id, error } of stamps.filter(({ givenUp }) => givenUp))
    options.logger.error('an outcome was given up: not every sink has taken it', { runs: [id], ...error });
  return { taken: stamps.length, done: stamps.filter(({ done }) => done).length };
}

/** The least that a batch's stamps may take, ms: what was sent and is not stamped is sent again. */
const markMs = 2_000;

async function takeDue(session: Session, told: readonly string[], options: PublishOptions): Promise<Due[]> {
  const { timeoutMs, deployment = unnamedDeployment, sinks } = options;
  const limits = { statementMs: timeoutMs, lockMs: timeoutMs * 0.8, idleMs: timeoutMs * 2 + 5_000 };
  const most = sinks.length > 0 ? batch : logBatch;
  const sql = [
    'ROLLBACK',
    begin,
    limitsSql(limits),
    `SELECT ${call(session, 'take_unpublished', listOf(told), most, deployment)} AS due`,
  ].join('; ');
  const results = await session.send(sql, timeoutMs);
  return answerOf<Due[]>(results, 'due').map((one) => ({ ...one, run: toRecord(one.run) }));
}

async function deliver(
  due: readonly Due[],
  told: readonly string[],
  options: PublishOptions,
): Promise<Stamp[]> {
  const signal = AbortSignal.timeout(options.timeoutMs);
  const { observers = new Observers(options.logger) } = options;
  for (const { run, sentTo } of due)
    if (!sentTo.includes(logName) && !told.includes(run.id)) observers.tell('recorded', run);
  const tries = await Promise.all(options.sinks.map(async (sink) => tryAt(sink, due, signal)));
  for (const one of tries) logRefusals(one, options.logger);
  return due.map((one) => stampOf(one, tries));
}

/** What a sink made of its part of a batch; of what it had before nothing is said. */
interface Try {
  readonly sink: string;
  readonly arrived: ReadonlySet<string>;
  readonly refused: ReadonlyMap<string, Refusal>;
}

async function tryAt(sink: Sink, due: readonly Due[], signal: AbortSignal): Promise<Try> {
  const records = due
    .filter(({ sentTo, run }) => !sentTo.includes(sink.name) && sink.wants?.(run) !== false)
    .map(({ run }) => run);
  const reported = new Map<string, Refusal>();
  let arrived: ReadonlySet<string> = new Set();
  let why: Refusal = { code: 'NotTaken', message: 'the sink did not say why' };
  try {
    if (records.length > 0)
      arrived = await orAborted(
        sink.send(records, signal, (id, refusal) => void reported.set(id, refusal)),
        signal,
      );
  } catch (error) {
    why = refusalOf(error);
  }
  const rest = records.filter(({ id }) => !arrived.has(id));
  const refused = new Map(rest.map(({ id }) => [id, clean(reported.get(id) ?? why)]));
  return { sink: sink.name, arrived, refused };
}

/** A stranger's words, as a database takes them. */
function clean({ code, message }: Refusal): Refusal {
  return { code: captureText(code.slice(0, 100)), message: captureText(message.slice(0, 500)) };
}

function stampOf({ run: { id }, sentTo, attempts }: Due, tries: readonly Try[]): Stamp {
  const now = tries.filter(({ arrived }) => arrived.has(id)).map(({ sink }) => sink);
  const failures = tries.flatMap(({ sink, refused }) => {
    const refusal = refused.get(id);
    return refusal ? [{ sink, ...refusal }] : [];
  });
  const done = failures.length === 0;
  const givenUp = !done && attempts + 1 >= triesAtMost;
  const error = done ? null : { tries: attempts + 1, givenUp, failures };
  return { id, sentTo: [...new Set([...sentTo, logName, ...now])], done, givenUp, error };
}

/** One line for all that were refused alike. */
function logRefusals({ sink, refused }: Try, logger: Logger): void {
  const alike = new Map<string, { refusal: Refusal; runs: string[] }>();
  for (const [id, refusal] of refused) {
    const key = `${refusal.code} ${refusal.message}`;
    const { runs } = alike.get(key) ?? { runs: [] };
    alike.set(key, { refusal, runs: [...runs, id] });
  }
  for (const { refusal, runs } of alike.values())
    logger.warn(`sink ${sink} did not take outcomes; they stay marked for a later try`, {
      runs,
      code: refusal.code,
      error: refusal.message,
    });
}

/** How long a sink that heeds its signal has to say what has arrived, ms. */
const lastWordMs = 50;

/** A sink that does not heed its signal is left behind. */
async function orAborted<T>(answer: Promise<T>, signal: AbortSignal): Promise<T> {
  answer.catch(() => undefined);
  const aborted = new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => {
      setTimeout(() => {
        reject(signal.reason as Error);
      }, lastWordMs);
    });
  });
  return Promise.race([answer, aborted]);
}
