import { spawn } from 'node:child_process';
import { cp, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/**
 * Shows that the tests can fail: breaks one promise at a time in a copy of the project, and expects a test to go red.
 */

interface Break {
  readonly promise: string;
  readonly file: string;
  readonly edits: readonly (readonly [find: string, replace: string])[];
  /** The test file, and a part of the test's name. */
  readonly red: readonly [file: string, name: string];
}

const sql = 'infra/migrations/0001_coordinator.sql';

const breaks: readonly Break[] = [
  {
    promise: 'no heartbeat',
    file: 'src/lock.ts',
    edits: [['this.#beating = setInterval(() => void this.#tick(), this.#beatMs);', '']],
    red: ['lease', 'keeps its lock for as long as it works'],
  },
  {
    promise: 'no countdown',
    file: 'src/lock.ts',
    edits: [['if (remainingMs <= 0) this.#give(this.#silence());', 'if (remainingMs <= 0) return;']],
    red: ['lease', 'stops before the server lets go of its lock, while it is idle'],
  },
  {
    promise: 'no lease on the server',
    file: 'src/lock.ts',
    edits: [
      [
        "set_config('idle_in_transaction_session_timeout', '${leaseMs}', true)",
        "set_config('idle_in_transaction_session_timeout', '0', true)",
      ],
    ],
    red: ['coordinate', 'runs a slot once'],
  },
  {
    promise: 'check() does not count the time',
    file: 'src/lock.ts',
    edits: [
      [
        '    if (this.#remainingMs() <= 0) this.#give(this.#silence());\n    if (this.#abort',
        '    if (this.#abort',
      ],
    ],
    red: ['lease', 'check\\(\\) throws at once'],
  },
  {
    promise: 'no second session to vouch for a long statement',
    file: 'src/lock.ts',
    edits: [['if (seen.atWork) this.#watched', 'if (!seen.atWork) this.#watched']],
    red: ['lease', 'is vouched for by a second session'],
  },
  {
    promise: 'the fence is not checked',
    file: sql,
    edits: [['AND l.fence = demand_fence.fence FOR SHARE;', 'FOR SHARE;']],
    red: ['lease', 'lost its lock without knowing'],
  },
  {
    promise: 'a fenced transaction does not hold its fence',
    file: sql,
    edits: [['AND l.fence = demand_fence.fence FOR SHARE;', 'AND l.fence = demand_fence.fence;']],
    red: ['lease', 'keeps a successor out'],
  },
  {
    promise: 'the unique index is dropped',
    file: sql,
    edits: [['CREATE UNIQUE INDEX run_one_success_per_slot', 'CREATE INDEX run_one_success_per_slot']],
    red: ['overlap', 'the unique index has the last word'],
  },
  {
    promise: 'a slot is looked up before the lock is had',
    file: sql,
    edits: [
      [
        '  key := CASE WHEN wait_ms > 0 THEN',
        '  SELECT d.reason, d.blocker INTO reason, blocker FROM cronce.refusal(want, policy, by_hand, at, self) d;\n' +
          '  key := CASE WHEN wait_ms > 0 THEN',
      ],
      [
        '    SELECT d.reason, d.blocker INTO reason, blocker\n      FROM cronce.refusal(want, policy, by_hand, at, self) d;\n',
        '',
      ],
    ],
    red: ['overlap', 'a duplicate that has waited is still a duplicate'],
  },
  {
    promise: 'fenced work is not asked for the SQL errors that it swallowed',
    file: 'src/work.ts',
    edits: [
      ['await settled(tx, body).finally', 'await body(tx).finally'],
      ["if (answers.at(-1)?.command !== 'COMMIT')", 'if (answers.at(-1)?.command === undefined)'],
    ],
    red: ['lease', 'what an SQL error had spoilt'],
  },
  {
    promise: 'a lost acknowledgement is taken for a lost run',
    file: sql,
    edits: [
      [
        "WHERE r.id = self AND r.status = 'running'\n    RETURNING r.* INTO made;\n  IF NOT FOUND THEN\n    SELECT * INTO made",
        'WHERE r.id = self\n    RETURNING r.* INTO made;\n  IF NOT FOUND THEN\n    SELECT * INTO made',
      ],
    ],
    red: ['coordinate', 'acknowledgement of COMMIT is lost'],
  },
  {
    promise: 'the sweep does not ask pg_locks',
    file: sql,
    edits: [
      ['FROM unnest(stale) r WHERE NOT cronce.holds(r.backend_pid, r.lock_key);', 'FROM unnest(stale) r;'],
    ],
    red: ['interleavings', 'a sweep and a cancel'],
  },
  {
    promise: 'a claim overtakes another that is starting',
    file: sql,
    edits: [['AND cronce.is_backend(r.backend_pid));', 'AND false);']],
    red: ['interleavings', 'in all 252 orders'],
  },
  {
    promise: 'a restart is not waited out',
    file: 'src/work.ts',
    edits: [['if (restMs > 0 && !signal.aborted)', 'if (restMs < 0)']],
    red: ['lease', 'wait out the lease'],
  },
  {
    promise: 'an SQL error may be swallowed',
    file: 'src/transaction.ts',
    edits: [['if (this.#failure) throw this.#failure.error;', '']],
    red: ['coordinate', 'swallowed an SQL error'],
  },
];

const project = fileURLToPath(new URL('../..', import.meta.url));

/** @returns whether every break was noticed */
export async function prove(): Promise<boolean> {
  const copy = await copyOfProject();
  try {
    let noticed = 0;
    for (const one of breaks) if (await isNoticed(copy, one)) noticed += 1;
    console.log(`${noticed} of ${breaks.length} broken promises were noticed`);
    return noticed === breaks.length;
  } finally {
    await rm(copy, { recursive: true, force: true });
  }
}

async function copyOfProject(): Promise<string> {
  const copy = await mkdtemp(join(tmpdir(), 'cronce-prove-'));
  for (const part of [
    'src',
    'infra',
    'functions',
    'test',
    'package.json',
    'tsconfig.json',
    'vitest.config.ts',
  ])
    await cp(join(project, part), join(copy, part), { recursive: true });
  await symlink(join(project, 'node_modules'), join(copy, 'node_modules'));
  return copy;
}

async function isNoticed(copy: string, { promise, file, edits, red }: Break): Promise<boolean> {
  const path = join(copy, file);
  const sound = await readFile(path, 'utf8');
  const where = `${promise}: ${file}`;
  await writeFile(
    path,
    edits.reduce((text, [find, replace]) => edit(text, find, replace, where), sound),
  );
  const code = await test(copy, red);
  await writeFile(path, sound);
  console.log(`${code === 0 ? 'NOT NOTICED' : 'noticed'}  ${promise}  (${red.join(': ')})`);
  return code !== 0;
}

function edit(text: string, find: string, replace: string, where: string): string {
  if (text.split(find).length !== 2) throw new Error(`prove: ${where} no longer has its line exactly once`);
  return text.replace(find, () => replace);
}

async function test(copy: string, [file, name]: readonly [string, string]): Promise<number | null> {
  const child = spawn(
    process.execPath,
    ['node_modules/vitest/vitest.mjs', 'run', `test/${file}.test.ts`, '-t', name],
    {
      cwd: copy,
      stdio: 'ignore',
    },
  );
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', resolve);
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) process.exitCode = (await prove()) ? 0 : 1;
