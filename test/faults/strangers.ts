/** Jobs that do to the lock's transaction whatever a job may do, for longer than a heartbeat takes to come. */
import type { Status } from '../../src/run.ts';
import type { Step } from './orders.ts';
import { brief, named, type Row } from './rows.ts';
import { described, playRow, slackMs, type Trial } from './trial.ts';

interface Stranger {
  readonly work: (trial: Trial) => readonly Step[];
  readonly outcomes: readonly Status[];
}

const afterwards: readonly Step[] = [
  { do: 'write', rounds: 0, everyMs: 0 },
  { do: 'vouch', ms: 900 },
];
const sql = (text: string, ...outcomes: Status[]): Stranger => ({
  work: () => [{ do: 'sql', text }, ...afterwards],
  outcomes: outcomes.length === 0 ? ['succeeded'] : outcomes,
});
const forgets = (text: string, ...outcomes: Status[]): Stranger => ({
  work: () => [
    { do: 'forget', text },
    { do: 'vouch', ms: 50 },
  ],
  outcomes,
});
const seedOf = (trial: Trial) => Math.floor(trial.random() * 2 ** 31);

const strangers: readonly [Stranger, ...Stranger[]] = [
  sql('SET LOCAL ROLE faults_tenant'),
  sql(`SET LOCAL statement_timeout = '1ms'`),
  { work: (trial) => [{ do: 'throw odd', which: seedOf(trial) }], outcomes: ['failed'] },
  sql(`SELECT set_config('DateStyle', 'German, DMY', true), set_config('TimeZone', 'Asia/Kathmandu', true)`),
  forgets('SELECT 1/0', 'failed'),
  sql('SET LOCAL transaction_read_only = on', 'succeeded', 'failed'),
  {
    work: (trial) => [{ do: 'return odd', which: seedOf(trial) }],
    outcomes: ['succeeded', 'failed'],
  },
  sql('SET LOCAL idle_in_transaction_session_timeout = 0'),
  sql(`SET LOCAL idle_in_transaction_session_timeout = '200ms'`, 'succeeded', 'lost'),
  sql(`SET LOCAL search_path = ''`),
  sql(`SET LOCAL lock_timeout = '1ms'`),
  forgets('SELECT pg_sleep(0.3)', 'succeeded', 'failed'),
  sql(`SET LOCAL transaction_timeout = '400ms'`, 'lost', 'failed'),
  sql(`SET LOCAL client_encoding = 'LATIN1'`, 'succeeded', 'failed'),
  sql(`SELECT set_config('bytea_output', 'escape', true), set_config('quote_all_identifiers', 'on', true)`),
  sql(
    `SELECT set_config('default_transaction_read_only', 'on', true), set_config('row_security', 'off', true)`,
  ),
  sql('SET LOCAL synchronous_commit = off'),
  sql('SELECT pg_advisory_unlock_all()'),
  sql('DECLARE kept CURSOR WITH HOLD FOR SELECT 1', 'succeeded', 'failed'),
  sql('LISTEN nobody', 'succeeded', 'failed'),
  sql('COMMIT', 'failed'),
  sql('DISCARD ALL', 'failed'),
  sql('SELECT pg_terminate_backend(pg_backend_pid())', 'lost'),
  sql(`SELECT pg_advisory_xact_lock(7261003), set_config('role', 'faults_tenant', true)`),
];

export const stranger: Row = (ground, trials, way) =>
  playRow(ground, { ...named('strangers', way), trials, lanes: 4 }, async (trial) => {
    await makeTenant(trial);
    const { work, outcomes } = trial.turn(strangers);
    const steps = work(trial);
    const { delivery } = await trial.begin(steps);
    const ended = await delivery.ended();
    const right = ended.kind === 'told' && outcomes.includes(ended.run.status);
    if (!right) trial.violate(`${JSON.stringify(steps[0])} ended as ${described(ended)}`);
    const endedAt = Date.now();
    const next = await trial.next(trial.newSlot(), brief, slackMs);
    // It has ended by its own hand, whatever it did: nobody waits for it.
    const { at } = await trial.begun(next);
    trial.time('next', at - endedAt);
    const nextEnded = await next.ended();
    const delayedMs = nextEnded.kind === 'told' ? nextEnded.run.delayedMs : null;
    if (nextEnded.kind !== 'told' || nextEnded.run.status !== 'succeeded' || delayedMs !== null)
      trial.violate(
        `after ${JSON.stringify(steps[0])} the next one was delayed by ${String(delayedMs)} ms: ${described(nextEnded)}`,
      );
  });

/** A role that the job's own may become. All databases of the server share it. */
async function makeTenant({ field: { db } }: Trial): Promise<void> {
  await db.query(`
    SELECT pg_advisory_xact_lock(7261002);
    DO $$ BEGIN CREATE ROLE faults_tenant; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
    GRANT faults_tenant TO ${db.role.name}`);
}
