/** The campaign's table: each row, and how often it is tried in full and in the short form that the tests run. */
import type { Ground } from './field.ts';
import { ddl } from './ddl.ts';
import { promotion, slowCommit } from './failover.ts';
import { crash, force } from './force.ts';
import * as rows from './rows.ts';
import type { Row } from './rows.ts';
import { stranger } from './strangers.ts';
import { storm } from './storm.ts';
import { tcp } from './tcp.ts';
import type { RowResult } from './trial.ts';
import { hasPgbouncer, type Way } from './ways.ts';

/** All trials, those of the tests, or so many of each row at the most. */
export type Form = 'full' | 'short' | number;
type Trials = Readonly<Record<'full' | 'short', number>>;

function trialsOf(trials: Trials, form: Form): number {
  return typeof form === 'number' ? Math.min(form, trials.full) : trials[form];
}

export interface PlannedRow {
  readonly name: string;
  /** It does something to the server of all: nothing else may be played meanwhile. */
  readonly disturbs: boolean;
  readonly play: (ground: Ground, form: Form) => Promise<readonly RowResult[]>;
}

const beside = (name: string, row: Row, trials: Trials): PlannedRow => ({
  name,
  disturbs: false,
  play: async (ground, form) => [await row(ground, trialsOf(trials, form))],
});

const alone = (...row: Parameters<typeof beside>): PlannedRow => ({ ...beside(...row), disturbs: true });

export const plan: readonly PlannedRow[] = [
  // The longest first, where they go side by side.
  { name: 'pgbouncer', disturbs: false, play: viaPgbouncer(pooled) },
  { name: 'neon', disturbs: false, play: playNeon },
  beside('kill', rows.kill, { full: 100, short: 8 }),
  beside('freeze', rows.freeze, { full: 50, short: 3 }),
  beside('partition', rows.partition, { full: 50, short: 4 }),
  beside('block', rows.block, { full: 20, short: 2 }),
  alone('restart', rows.restart, { full: 20, short: 2 }),
  beside('end-session', rows.endSession, { full: 50, short: 8 }),
  beside('fence', rows.fence, { full: 30, short: 3 }),
  beside('lost-acknowledgement', rows.lostAcknowledgement, { full: 50, short: 5 }),
  beside('force', force, { full: 80, short: 8 }),
  alone('crash', crash, { full: 20, short: 2 }),
  alone('slow-commit', slowCommit, { full: 20, short: 2 }),
  beside('promotion', promotion, { full: 20, short: 2 }),
  beside('tcp', tcp, { full: 40, short: 4 }),
  beside('ddl', ddl, { full: 20, short: 2 }),
  beside('strangers', stranger, { full: 96, short: 8 }),
  { name: 'pgbouncer-restart', disturbs: true, play: viaPgbouncer(pooledEnds) },
  { name: 'storm', disturbs: true, play: playStorm },
];

function viaPgbouncer(shares: () => readonly Share[]): PlannedRow['play'] {
  return async (ground, form) => {
    if (await hasPgbouncer()) return playVia(ground, 'pgbouncer', shares(), form);
    return [{ ...nothing('pgbouncer'), skipped: 'PgBouncer is not installed (apt-get install pgbouncer)' }];
  };
}

function pooled(): readonly Share[] {
  return [
    [rows.kill, { full: 32, short: 3 }],
    [rows.freeze, { full: 12, short: 2 }],
    [rows.partition, { full: 12, short: 2 }],
    [rows.block, { full: 8, short: 1 }],
    [rows.endSession, { full: 16, short: 2 }],
    [rows.fence, { full: 10, short: 1 }],
    [rows.lostAcknowledgement, { full: 15, short: 2 }],
    [force, { full: 24, short: 2 }],
    [stranger, { full: 48, short: 2 }],
  ];
}

function pooledEnds(): readonly Share[] {
  return [
    [rows.restart, { full: 6, short: 1 }],
    [crash, { full: 6, short: 1 }],
  ];
}

async function playNeon(ground: Ground, form: Form): Promise<readonly RowResult[]> {
  return playVia(
    ground,
    'neon',
    [
      [rows.relay, { full: 48, short: 5 }],
      [rows.kill, { full: 16, short: 2 }],
      [rows.freeze, { full: 6, short: 1 }],
      [rows.partition, { full: 10, short: 1 }],
      [rows.endSession, { full: 8, short: 2 }],
      [force, { full: 16, short: 2 }],
      [stranger, { full: 48, short: 2 }],
      [rows.lostAcknowledgement, { full: 10, short: 2 }],
    ],
    form,
  );
}

type Share = readonly [Row, Trials];

/** Few trials mostly wait, and so go side by side; but what ends the server would disturb the others. */
async function playVia(
  ground: Ground,
  way: Way['name'],
  shares: readonly Share[],
  form: Form,
): Promise<readonly RowResult[]> {
  const isEnd = ([row]: Share) => row === rows.restart || row === crash;
  const groups = form === 'short' && !shares.some(isEnd) ? [shares] : shares.map((share) => [share]);
  const results: RowResult[] = [];
  for (const group of groups)
    results.push(
      ...(await Promise.all(group.map(([row, trials]) => row(ground, trialsOf(trials, form), way)))),
    );
  return results;
}

async function playStorm(ground: Ground, form: Form): Promise<readonly RowResult[]> {
  const full = { processes: 40, slots: 200, deliveries: 5, forMs: 240_000, restarts: 4 };
  const short = { processes: 8, slots: 16, deliveries: 5, forMs: 10_000, restarts: 1 };
  const medium = { processes: 16, slots: 60, deliveries: 5, forMs: 60_000, restarts: 2 };
  return [await storm(ground, form === 'full' ? full : form === 'short' ? short : medium)];
}

function nothing(row: string): RowResult {
  return { row, trials: 0, undone: [], violations: [], times: {} };
}

/** A row in which nothing could be tried shows nothing, and so does not pass. */
export function hasFailed({ trials, violations, skipped }: RowResult): boolean {
  return violations.length > 0 || (trials === 0 && skipped === undefined);
}
