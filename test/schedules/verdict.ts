import { CannotConnect } from '../../src/postgres/errors.ts';
import type { TestDatabase } from '../support/database.ts';
import type { Played, Stay } from './play.ts';

interface Stored {
  readonly id: string;
  readonly slot: string;
  readonly job: string;
  readonly status: string;
  readonly tx: number;
  readonly fenced: number;
  /** Fenced rows when the run left `running`; null for one that never stood so. */
  readonly fencedUntil: number | null;
}

/** What of the four invariants a schedule broke, in words; nothing where all held. */
export async function violationsOf(played: Played, db: TestDatabase): Promise<string[]> {
  const stored = await storedRuns(played.job, db);
  return [
    ...twoInside(played),
    ...twoSuccesses(stored),
    ...writesAgree(stored, played.stays),
    ...notOnRecord(stored, played),
  ];
}

async function storedRuns(job: string, db: TestDatabase): Promise<Stored[]> {
  const rows = await db.query(
    `SELECT r.id, r.slot, r.job, r.status, u.notes AS "fencedUntil",
       (SELECT count(*)::int FROM note n WHERE n.run_id = r.id AND n.how = 'tx') AS tx,
       (SELECT count(*)::int FROM note n WHERE n.run_id = r.id AND n.how = 'fenced') AS fenced
     FROM cronce.run r LEFT JOIN fenced_until u ON u.run_id = r.id WHERE r.job LIKE $1`,
    [`${job}-%`],
  );
  return rows as unknown as Stored[];
}

/** Those whose `check()` passed both, in turns: a lock delay of 0 waives it for whoever comes after. */
function* twoInside({ plan, stays }: Played): Generator<string> {
  const places = plan.jobs[0]?.overlap === 'allow' ? Infinity : (plan.jobs[0]?.places ?? 1);
  const vouching = stays.filter(({ beganAt, vouchedUntil }) => beganAt < vouchedUntil);
  for (const one of vouching) {
    const inside = vouching.filter(
      (other) => other.beganAt <= one.beganAt && one.beganAt < other.vouchedUntil && isWaitedFor(other, one),
    );
    if (inside.length > places) yield `${inside.length} inside that vouch, with ${places} places`;
    const twins = inside.filter(({ slot, job }) => slot === one.slot && job === one.job);
    if (twins.length > 1) yield `two of ${one.job} ${one.slot} inside that vouch`;
  }
}

function isWaitedFor(other: Stay, one: Stay): boolean {
  return other === one || other.lockDelayMs !== 0;
}

function* twoSuccesses(stored: readonly Stored[]): Generator<string> {
  const names = stored
    .filter(({ status }) => status === 'succeeded')
    .map(({ job, slot }) => `${job} ${slot}`);
  for (const name of new Set(names))
    if (names.filter((other) => other === name).length > 1) yield `two successes of ${name}`;
}

/** Through `tx` exactly what succeeded; fenced exactly what was told to be committed, before the run's end. */
function* writesAgree(stored: readonly Stored[], stays: readonly Stay[]): Generator<string> {
  for (const { id, status, tx, fenced, fencedUntil } of stored) {
    if (tx !== (status === 'succeeded' ? 1 : 0)) yield `run ${id} ${status}, with ${tx} writes through tx`;
    if (fencedUntil !== null && fenced > fencedUntil)
      yield `run ${id}: ${fenced - fencedUntil} fenced commits after its end`;
    const told = stays.find(({ runId }) => runId === id)?.fenced ?? 0;
    if (fenced < told) yield `run ${id}: ${told - fenced} fenced commits are gone`;
  }
}

function* notOnRecord(stored: readonly Stored[], { told, plan, after }: Played): Generator<string> {
  for (const { id, status } of stored) if (status === 'running') yield `run ${id} never ended`;
  for (const run of told) {
    if (run instanceof Error) continue;
    const status = stored.find(({ id }) => id === run.id)?.status;
    if (status !== run.status) yield `run ${run.id} told as ${run.status}, on record as ${String(status)}`;
  }
  // A client that was cut off before its claim arrived delivered nothing.
  const everyone = plan.injuries.some(({ kind }) => kind === 'banish');
  const hurt = new Set(plan.injuries.filter(({ kind }) => network.has(kind)).map(({ whom }) => whom));
  const cutOff = everyone ? told.length : hurt.size;
  const delivered = stored.filter(({ slot }) => slot !== after.slot).length;
  const elsewhere = plan.injuries.filter(({ kind }) => kind === 'terminate').length;
  // Nor did one that a busy machine let reach no server in time: it claimed nothing, and Lambda would bring it again.
  const unreached = told.filter((run) => run instanceof CannotConnect).length;
  if (delivered < told.length - cutOff - elsewhere - unreached)
    yield `${told.length} delivered, ${cutOff} of them cut off, ${delivered} on record: ${told.map(String).join('; ')}`;
  if (after.status !== 'succeeded')
    yield `stranded: a later delivery is ${after.status} (${String(after.skipReason)})`;
}

const network = new Set(['kill', 'partition', 'stall']);
