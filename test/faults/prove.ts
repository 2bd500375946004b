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
    edits: [['lockMs: enterWaitMs, idleMs: leaseMs }', 'lockMs: enterWaitMs, idleMs: 0 }']],
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
    edits: [['if (seen?.atWork) this.#watched', 'if (!seen?.atWork) this.#watched']],
    red: ['lease', 'is vouched for by a second session'],
  },
  {
    promise: 'the fence is not checked',
    file: 'infra/sql/stands.sql',
    edits: [["r.status = 'running' AND l.fence = r.fence AND l.run_id = r.id", 'true']],
    red: ['lease', 'lost its lock without knowing'],
  },
  {
    promise: 'nobody waits for the fenced transactions of a run that is ended',
    file: 'infra/sql/drain.sql',
    edits: [['    IF pg_try_advisory_xact_lock(own) THEN', '    IF true THEN']],
    red: ['lease', 'ends with its run, and commits nothing then'],
  },
  {
    promise: 'the unique index is dropped',
    file: 'infra/migrations/0003_lock_delay.sql',
    edits: [['CREATE UNIQUE INDEX run_one_success_per_slot', 'CREATE INDEX run_one_success_per_slot']],
    red: ['overlap', 'the unique index has the last word'],
  },
  {
    promise: 'fenced work is not asked for the SQL errors that it swallowed',
    file: 'src/work.ts',
    edits: [['const value = await settled(tx, body);', 'const value = await body(tx);']],
    red: ['lease', 'what an SQL error had spoilt'],
  },
  {
    promise: 'a lost acknowledgement is taken for a lost run',
    file: 'infra/sql/settle.sql',
    edits: [
      [
        "    WHERE r.id = self AND r.status = 'running'\n    RETURNING",
        '    WHERE r.id = self\n    RETURNING',
      ],
    ],
    red: ['coordinate', 'acknowledgement of COMMIT is lost'],
  },
  {
    promise: 'the sweep does not ask pg_locks',
    file: 'infra/sql/orphans.sql',
    edits: [
      [
        'WHERE NOT EXISTS (SELECT FROM cronce.held_keys() h WHERE h.pid = r.backend_pid AND h.key = r.lock_key);',
        'WHERE true;',
      ],
    ],
    red: ['interleavings', 'a sweep and a cancel'],
  },
  {
    promise: 'a claim overtakes another that is starting',
    file: 'infra/sql/is_starting.sql',
    edits: [['AND cronce.is_backend(r.backend_pid))', 'AND false)']],
    red: ['interleavings', 'in all 252 orders'],
  },
  {
    promise: 'the lock delay is not waited for',
    file: 'src/work.ts',
    edits: [['if (options.restMs > 0) await', 'if (options.restMs < 0) await']],
    red: ['faults', 'force'],
  },
  {
    promise: "the server's TCP limits are shorter than the lease",
    file: 'infra/sql/keep_session.sql',
    edits: [['greatest(1, ceil(lease_ms / 1000.0));', '1;']],
    red: ['faults', 'tcp'],
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
