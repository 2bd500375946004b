import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cp, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/**
 * Shows that the tests can fail: breaks one promise at a time in a copy of the project, and expects a test to go red. The
 * functions of infra/sql are laid anew by each test run, so a break in them is in force as one in the code is.
 */

export interface Break {
  readonly promise: string;
  readonly file: string;
  readonly edits: readonly (readonly [find: string, replace: string])[];
  /** The test file, and a part of the test's name. */
  readonly red: readonly [file: string, name: string];
}

export const breaks: readonly Break[] = [
  {
    promise: 'no heartbeat',
    file: 'src/path/lock.ts',
    edits: [['this.#beating = setInterval(() => void this.#tick(), this.#beatMs);', '']],
    red: ['path/lock', 'keeps its lock for as long as it works'],
  },
  {
    promise: 'no countdown',
    file: 'src/path/lock.ts',
    edits: [['if (remainingMs <= 0) this.#give(this.#silence());', 'if (remainingMs <= 0) return;']],
    red: ['path/outcome', 'the lease counts from the sending'],
  },
  {
    promise: 'no lease on the server',
    file: 'src/path/enter.ts',
    edits: [['lockMs: enterWaitMs, idleMs: leaseMs }', 'lockMs: enterWaitMs, idleMs: 0 }']],
    red: ['coordinate', 'runs a slot once'],
  },
  {
    promise: 'the lease counts from the answer',
    file: 'src/postgres/session.ts',
    edits: [['      this.#answered = sentAt;\n', '      this.#answered = moment();\n']],
    red: ['path/outcome', 'the lease counts from the sending'],
  },
  {
    promise: 'check() does not count the time',
    file: 'src/path/lock.ts',
    edits: [
      [
        '    if (this.#remainingMs() <= 0) this.#give(this.#silence());\n    if (this.#abort',
        '    if (this.#abort',
      ],
    ],
    red: ['path/lock', 'check\\(\\) throws at once'],
  },
  {
    promise: 'no second session to vouch for a long statement',
    file: 'src/path/lock.ts',
    edits: [['if (seen?.atWork) this.#watched', 'if (seen === null) this.#watched']],
    red: ['path/lock', 'is vouched for by a second session'],
  },
  {
    promise: 'an idle backend is vouched for',
    file: 'infra/sql/watch.sql',
    edits: [["SELECT a.state = 'active' FROM", 'SELECT true FROM']],
    red: ['sql/lock', 'watch idle with the lock'],
  },
  {
    promise: 'a heartbeat hears of no settlement',
    file: 'src/path/lock.ts',
    edits: [['else if (!stands)', 'else if (status === null)']],
    red: ['path/outcome', 'a heartbeat hears that its run was settled'],
  },
  {
    promise: 'the fence is not looked at',
    file: 'infra/sql/demand_fence.sql',
    edits: [['IF cronce.stands(self) THEN', 'IF true THEN']],
    red: ['sql/outcome', 'a higher fence: is seen'],
  },
  {
    promise: 'a fence is a number’s and not a run’s',
    file: 'infra/sql/stands.sql',
    edits: [[' AND l.run_id = r.id', '']],
    red: ['sql/outcome', 'but another run’s: is seen'],
  },
  {
    promise: 'a fenced transaction outlives its run',
    file: 'infra/sql/drain.sql',
    edits: [['IF pg_try_advisory_xact_lock(own) THEN', 'IF true THEN']],
    red: ['sql/outcome', 'finish ends what still goes on'],
  },
  {
    promise: 'the unique index is dropped',
    file: 'infra/migrations/0003_lock_delay.sql',
    edits: [['CREATE UNIQUE INDEX run_one_success_per_slot', 'CREATE INDEX run_one_success_per_slot']],
    red: ['path/claim', 'the unique index has the last word'],
  },
  {
    promise: 'a slot is looked up before the lock is had',
    file: 'infra/sql/claim.sql',
    edits: [
      [
        '  LOOP\n    key :=',
        '  SELECT d.reason, d.blocker INTO reason, blocker FROM cronce.refusal(p, at, self) d;\n  LOOP\n    key :=',
      ],
      [
        '    ELSE\n      SELECT d.reason, d.blocker INTO reason, blocker FROM cronce.refusal(p, at, self) d;\n    END IF;',
        '    END IF;',
      ],
    ],
    red: ['path/claim', 'a duplicate that has waited is still a duplicate'],
  },
  {
    promise: 'a claim is not patient',
    file: 'infra/sql/claim.sql',
    edits: [['EXIT WHEN in_way.id IS NOT NULL OR', 'EXIT WHEN true OR']],
    red: ['sql/lock', 'nobody behind a held lock'],
  },
  {
    promise: 'what COMMIT answers is not looked at',
    file: 'src/path/outcome.ts',
    edits: [["if (results.at(-1)?.command !== 'COMMIT')", 'if (results.length === 0)']],
    red: ['path/outcome', 'a COMMIT that is answered by ROLLBACK'],
  },
  {
    promise: 'a lost acknowledgement is taken for a lost run',
    file: 'infra/sql/settle.sql',
    edits: [
      ["WHERE r.id = self AND r.status = 'running'\n    RETURNING", 'WHERE r.id = self\n    RETURNING'],
    ],
    red: ['coordinate', 'by pg reads the outcome again'],
  },
  {
    promise: 'a lost session’s work is a success',
    file: 'src/path/outcome.ts',
    edits: [["verdict.status === 'succeeded' ? lost(session.lost.reason) : verdict", 'verdict']],
    red: ['path/outcome', 'work that returned is lost'],
  },
  {
    promise: 'the sweep does not ask pg_locks',
    file: 'infra/sql/orphans.sql',
    edits: [
      [
        '\n    WHERE NOT EXISTS (SELECT FROM cronce.held_keys() h WHERE h.pid = r.backend_pid AND h.key = r.lock_key);',
        ';',
      ],
    ],
    red: ['sql/lock', 'orphans one whose backend has the lock'],
  },
  {
    promise: 'a claim overtakes another that is starting',
    file: 'infra/sql/is_starting.sql',
    edits: [['AND cronce.is_backend(r.backend_pid))', 'AND false)']],
    red: ['sql/lock', 'free, but another is about to have it'],
  },
  {
    promise: 'the lock delay is not waited for',
    file: 'src/path/work.ts',
    edits: [['if (options.restMs > 0)', 'if (options.restMs < 0)']],
    red: ['path/lock', 'while a successor waits for the lock delay'],
  },
  {
    promise: 'the delay of a forced end is not recorded',
    file: 'infra/sql/settle.sql',
    edits: [['CASE WHEN NOT own AND', 'CASE WHEN false AND']],
    red: ['sql/outcome', 'settle of someone else'],
  },
  {
    promise: 'a run’s own hand is not told from another’s',
    file: 'src/path/outcome.ts',
    edits: [['own: options.hasStopped', 'own: true']],
    red: ['path/outcome', 'work that was cut off may still go on'],
  },
  {
    promise: 'T1 does not take the guard',
    file: 'infra/sql/enter.sql',
    edits: [['    PERFORM pg_advisory_xact_lock(mine.guard_key) WHERE mine.guard_key IS NOT NULL;\n', '']],
    red: ['sql/lock', 'enter waits for its guard'],
  },
  {
    promise: 'a claim does not take the guard',
    file: 'infra/sql/take_place.sql',
    edits: [['IF NOT pg_try_advisory_xact_lock(guard) THEN', 'IF false THEN']],
    red: ['sql/lock', 'guard is held'],
  },
  {
    promise: 'a place that is not used is kept',
    file: 'infra/sql/take_place.sql',
    edits: [
      [
        "            RETURN k;\n          END IF;\n          RAISE EXCEPTION USING ERRCODE = 'CR005';",
        '            RETURN k;\n          END IF;',
      ],
    ],
    red: ['sql/lock', 'the last of three'],
  },
  {
    promise: 'turned away without a record',
    file: 'src/path/steps.ts',
    edits: [
      [
        'if (failures === failuresAtMost) return this.#turnAway(session, request, claim);',
        'if (failures === failuresAtMost) throw claim;',
      ],
    ],
    red: ['path/outcome', 'can’t get through leaves a record'],
  },
  {
    promise: 'a cancel is forgotten',
    file: 'infra/sql/finish.sql',
    edits: [
      [
        "status = CASE WHEN r.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE p ->> 'status' END",
        "status = p ->> 'status'",
      ],
    ],
    red: ['sql/outcome', 'finish a failure after a cancel'],
  },
  {
    promise: 'an outcome is stamped before it is told',
    file: 'infra/sql/finish.sql',
    edits: [
      [
        "publish_after = clock_timestamp() + interval '30 s'",
        "publish_after = clock_timestamp() + interval '30 s', published_at = clock_timestamp()",
      ],
    ],
    red: ['sql/outcome', 'finish a success'],
  },
  {
    promise: 'T1 keeps a lock on our tables',
    file: 'infra/sql/enter.sql',
    edits: [
      [
        "WHERE r.id = self;\n    stood := cronce.stands(self);\n    RAISE EXCEPTION USING ERRCODE = 'CR005';",
        'WHERE r.id = self;\n    stood := cronce.stands(self);',
      ],
    ],
    red: ['sql/lock', 'enter stands'],
  },
  {
    promise: 'a fenced transaction keeps a lock on our tables',
    file: 'infra/sql/look.sql',
    edits: [["  RAISE EXCEPTION USING ERRCODE = 'CR005';", '  RETURN found;']],
    red: ['whole/record', 'nothing waits'],
  },
  {
    promise: 'replace ends another job’s run',
    file: 'infra/sql/ask_to_give_way.sql',
    edits: [['      AND r.job = ask_to_give_way.job AND', '      AND']],
    red: ['sql/lock', 'another job that shares the lock'],
  },
  {
    promise: 'what a failover forgot is not waited for',
    file: 'infra/sql/claim.sql',
    edits: [["IF new_since > clock_timestamp() - interval '1 day' THEN", 'IF false THEN']],
    red: ['sql/lock', 'a timeline seen 5 s ago'],
  },
  {
    promise: 'a failover gives fences out again',
    file: 'infra/sql/next_fence.sql',
    edits: [['greatest(l.fence + 1, least_fence)', 'l.fence + 1']],
    red: ['sql/lock', 'whatever was forgotten'],
  },
  {
    promise: 'our statements keep the job’s role',
    file: 'src/path/outcome.ts',
    edits: [["return ['SET LOCAL ROLE NONE', limitsSql(limits)", 'return [limitsSql(limits)']],
    red: ['path/outcome', 'is done as ourselves'],
  },
  {
    promise: 'deferred constraints are not the work’s',
    file: 'src/path/outcome.ts',
    edits: [["    'SET CONSTRAINTS ALL IMMEDIATE',\n    'RELEASE", "    'RELEASE"]],
    red: ['path/outcome', 'may not take longer than the work'],
  },
  {
    promise: 'an SQL error may be swallowed',
    file: 'src/path/transaction.ts',
    edits: [['if (this.#failure) throw this.#failure.error;', '']],
    red: ['coordinate', 'by pg does not let a job succeed that swallowed'],
  },
  {
    promise: 'a parameter that can’t be sent counts as heard',
    file: 'src/postgres/session.ts',
    edits: [
      [
        '    if (thrown !== this.#refused ||',
        '    this.#answered = sentAt;\n    if (thrown !== this.#refused ||',
      ],
    ],
    red: ['postgres/session', 'is not heard under a partition'],
  },
  {
    promise: 'COMMIT is not durable',
    file: 'infra/sql/demand_durability.sql',
    edits: [["IF current_setting('synchronous_commit') = 'off' THEN", 'IF false THEN']],
    red: ['sql/lock', 'dead client is noticed settle'],
  },
  {
    promise: 'another job’s pause counts',
    file: 'infra/sql/account.sql',
    edits: [[' AND z.job = own_job', '']],
    red: ['sql/accounts', 'another job paused'],
  },
  {
    promise: 'two relays send the same',
    file: 'infra/sql/take_unpublished.sql',
    edits: [
      ['LIMIT most FOR UPDATE SKIP LOCKED', 'LIMIT most'],
      ['LIMIT most - cardinality(due) FOR UPDATE SKIP LOCKED', 'LIMIT most - cardinality(due)'],
    ],
    red: ['sql/accounts', 'passes by what another relay has'],
  },
  {
    promise: 'a bus is sent more than it takes',
    file: 'src/path/publish.ts',
    edits: [['const batch = 10;', 'const batch = 100;']],
    red: ['path/publish', 'of a backlog of eleven'],
  },
  {
    promise: 'a chain of invocations without end',
    file: 'src/path/owed.ts',
    edits: [['export const longestChain = 10;', 'export const longestChain = 100;']],
    red: ['path/owed', 'is asked for by a chain no longer'],
  },
  {
    promise: 'owed slots are asked for all at once',
    file: 'infra/sql/next_owed.sql',
    edits: [['IF busy THEN', 'IF false THEN']],
    red: ['path/owed', 'by several runs that end at once'],
  },
  {
    promise: 'a slot is given up for a catch-up',
    file: 'infra/sql/claim.sql',
    edits: [['owed := reason IS NULL AND catching_up IS NOT NULL;', 'owed := false;']],
    red: ['path/owed', 'that a catch-up turned away is owed'],
  },
  {
    promise: 'a slot whose success may be pruned runs again',
    file: 'infra/sql/refusal.sql',
    edits: [
      ["(policy ->> 'retentionMs')::numeric / 1000) < at", "(policy ->> 'retentionMs')::numeric) < at"],
    ],
    red: ['sweep/sweep', 'a slot that is older than the retention'],
  },
  {
    promise: 'the last success of a job is pruned',
    file: 'infra/sql/expired.sql',
    edits: [['(r.status NOT IN', '(true OR r.status NOT IN']],
    red: ['sweep/sweep', 'deletes old runs, but of each job neither'],
  },
  {
    promise: 'a paused job runs',
    file: 'infra/sql/claim.sql',
    edits: [['is_first AND paused IS NOT TRUE AND', 'is_first AND']],
    red: ['sweep/sweep', 'turns deliveries away, by whom and why'],
  },
  {
    promise: 'a slot runs though its time has run out',
    file: 'infra/sql/claim.sql',
    edits: [['/ 1000)) IS NOT FALSE THEN', '/ 1000)) IS NOT NULL THEN']],
    red: ['sweep/sweep', 'come too late where the job has a deadline'],
  },
  {
    promise: 'a first message leaves ahead of the password',
    file: 'src/postgres/driver.ts',
    edits: [['      say(words);\n      leave();', '      leave();\n      say(words);']],
    red: ['postgres/driver', 'is read by a server that lets us in'],
  },
  {
    promise: 'a first message leaves twice',
    file: 'src/postgres/driver.ts',
    edits: [['else if (leftAt === null) leave();', 'else leave();']],
    red: ['postgres/driver', 'is read by a server that lets us in'],
  },
  {
    promise: 'a first message leaves before SCRAM has shown whose server it is',
    file: 'src/postgres/driver.ts',
    edits: [["target.driver === 'pg' && knowsServer(client.ssl)", "target.driver === 'pg'"]],
    red: ['postgres/driver', 'leaves in one flight with the password'],
  },
  {
    promise: 'a first message counts from when it could be answered',
    file: 'src/postgres/session.ts',
    edits: [['first.leftAt() ?? this.#answered', 'moment()']],
    red: ['postgres/driver', 'counts as sent when it left'],
  },
  {
    promise: 'last words get lost with the goodbye',
    file: 'src/postgres/driver.ts',
    edits: [['Buffer.concat([last, goodbye])', 'goodbye']],
    red: ['postgres/session', 'has its statements run and leaves no backend'],
  },
  {
    promise: 'last words through a pooler leave with the goodbye',
    file: 'src/postgres/session.ts',
    edits: [['backendPid === this.#client.processID', 'backendPid > 0']],
    red: ['postgres/pooler', 'runs the last statements of a session'],
  },
  // Outcome and lock: changes that once went unnoticed.
  {
    promise: 'one that claimed anew is settled as dead',
    file: 'infra/sql/settle_dead.sql',
    edits: [[' AND r.fence = one.fence', '']],
    red: ['sql/outcome', 'settle_dead one that claimed anew'],
  },
  {
    promise: 'a finished run is settled as dead',
    file: 'infra/sql/settle_dead.sql',
    edits: [["AND r.fence = one.fence AND r.status = 'running'", 'AND r.fence = one.fence']],
    red: ['sql/outcome', 'settle_dead a success'],
  },
  {
    promise: 'a backend without the lock is vouched for',
    file: 'infra/sql/watch.sql',
    edits: [['\n    AND cronce.holds(watch.pid, watch.key))', ')']],
    red: ['sql/lock', 'watch at work without the lock'],
  },
  {
    promise: 'a successor is ended for the run before it',
    file: 'infra/sql/end_holder.sql',
    edits: [[' AND l.fence = r.fence AND l.run_id = r.id', '']],
    red: ['sql/outcome', 'end_holder a successor'],
  },
  {
    promise: 'a stranger on a pooled session is ended',
    file: 'infra/sql/end_holder.sql',
    edits: [
      ['    AND cronce.holds(r.backend_pid, r.lock_key)\n', ''],
      ['    AND (r.guard_key IS NULL OR cronce.holds(r.backend_pid, r.guard_key))\n', ''],
    ],
    red: ['sql/outcome', 'end_holder a stranger that got the backend'],
  },
  {
    promise: 'END is let through tx',
    file: 'src/path/statement.ts',
    edits: [
      ['^(?:commit|end)(?: work', '^(?:commit)(?: work'],
      ['start|commit|end|rollback|abort|savepoint', 'start|commit|rollback|abort|savepoint'],
    ],
    red: ['path/outcome', 'can’t end the lock’s transaction'],
  },
  {
    promise: 'ABORT is let through tx',
    file: 'src/path/statement.ts',
    edits: [
      ['^(?:rollback|abort)(?: work', '^(?:rollback)(?: work'],
      ['start|commit|end|rollback|abort|savepoint', 'start|commit|end|rollback|savepoint'],
    ],
    red: ['path/outcome', 'can’t end the lock’s transaction'],
  },
  {
    promise: 'PREPARE is let through tx',
    file: 'src/path/statement.ts',
    edits: [['  prepare: pooled,\n', '']],
    red: ['path/outcome', 'can’t end the lock’s transaction'],
  },
  {
    promise: 'tx goes on after the work',
    file: 'src/path/work.ts',
    edits: [['  if (ended.aborted) return ended.reason as WorkIsOver;\n', '']],
    red: ['path/outcome', 'has no tx, and no fenced, once it has returned'],
  },
  {
    promise: 'work begins though it was stopped',
    file: 'src/path/work.ts',
    edits: [['    context.signal.throwIfAborted();\n    const { run, logger }', '    const { run, logger }']],
    red: ['path/outcome', 'does not begin once it was told to stop'],
  },
  {
    promise: 'a skip counts as an attempt',
    file: 'infra/sql/next_attempt.sql',
    edits: [[' AND r.attempt IS NOT NULL', ' AND true']],
    red: ['sql/lock', 'counts attempts, and no skip is one'],
  },
  {
    promise: 'a claim made again sees itself starting',
    file: 'infra/sql/is_starting.sql',
    edits: [['      AND r.id <> is_starting.self\n', '']],
    red: ['sql/lock', 'is_starting young, its backend lives'],
  },
  {
    promise: 'a claim made again keeps its old key',
    file: 'infra/sql/start_run.sql',
    edits: [['UPDATE cronce.run r SET lock_key = own_key, fence', 'UPDATE cronce.run r SET fence']],
    red: ['sql/lock', 'made again counts not itself'],
  },
  {
    promise: 'a start record counts as starting for ever',
    file: 'infra/sql/is_starting.sql',
    edits: [['      AND r.claimed_at > clock_timestamp() - make_interval(secs => gap_ms / 1000.0)\n', '']],
    red: ['sql/lock', 'is_starting too old'],
  },
  {
    promise: 'the last attempt is tried again',
    file: 'infra/sql/is_final.sql',
    edits: [['      OR r.attempt >= r.max_attempts\n', '']],
    red: ['sql/outcome', 'settle of the last attempt'],
  },
  {
    promise: 'a slot on hold runs again',
    file: 'infra/sql/is_final.sql',
    edits: [["(outcome = 'lost' AND r.after_lost = 'hold')", 'false']],
    red: ['sql/outcome', 'settle lost, to be held'],
  },
  {
    promise: 'no time is kept for the record',
    file: 'src/path/limits.ts',
    edits: [['recordingMs = 4_000', 'recordingMs = 400']],
    red: ['path/outcome', 'work is stopped with enough time left'],
  },
  {
    promise: 'a wait for the lock is as long as the job says',
    file: 'src/path/steps.ts',
    edits: [['Math.min(job.waitMs, workMs) : 0', 'job.waitMs : 0']],
    red: ['path/outcome', 'a wait for the lock is given up'],
  },
  {
    promise: 'each attempt has an idempotency key of its own',
    file: 'src/path/work.ts',
    edits: [['`${run.job}/${run.slot}`', 'run.id']],
    red: ['path/outcome', 'has one idempotency key a slot'],
  },
  // Accounts and publishing: the same.
  {
    promise: 'those about to enter are settled as lost',
    file: 'src/sweep/sweep.ts',
    edits: [['this.#options.gapMs ?? startGapMs', 'this.#options.gapMs ?? 0']],
    red: ['sweep/sweep', 'leaves a start alone for as long as it may take to enter'],
  },
  {
    promise: 'what is in order is looked at again for ever',
    file: 'src/sweep/accounts.ts',
    edits: [['missed.length > 0 || isLong || !whole ?', 'missed.length > 0 ?']],
    red: ['sweep/sweep', 'takes none of a healthy job’s slots for missed'],
  },
  {
    promise: 'a disabled schedule misses slots',
    file: 'src/sweep/accounts.ts',
    edits: [['job.schedules.filter(({ enabled }) => enabled).map(', 'job.schedules.map(']],
    red: ['sweep/sweep', 'are none of a schedule that is disabled'],
  },
  {
    promise: 'a flexible window is not waited for',
    file: 'src/sweep/accounts.ts',
    edits: [['this.#graceMs(schedule.flexibleMinutes ?? 0)', 'this.#graceMs(0)']],
    red: ['sweep/sweep', 'are such only once their flexible window is over'],
  },
  {
    promise: 'the sweep never relays',
    file: 'src/sweep/sweep.ts',
    edits: [["    await this.#step('publish', () => this.#relay());\n", '']],
    red: ['sweep/sweep', 'relays what waits in the outbox'],
  },
  {
    promise: 'a paused job catches up',
    file: 'infra/sql/next_owed.sql',
    edits: [[' AND j.paused_at IS NULL', '']],
    red: ['sweep/sweep', 'does not catch up for a job that was paused'],
  },
  {
    promise: 'a resume rewrites old pauses',
    file: 'infra/sql/resume_job.sql',
    edits: [[' AND p.resumed_at IS NULL', '']],
    red: ['sql/accounts', 'who paused first, and why, counts'],
  },
  {
    promise: 'a resume ends every job’s pause',
    file: 'infra/sql/resume_job.sql',
    edits: [[' AND p.job = resume_job.name', '']],
    red: ['sql/accounts', 'who paused first, and why, counts'],
  },
  {
    promise: 'a manual run counts as a delivery',
    file: 'infra/sql/delivered.sql',
    edits: [[" AND r.slot NOT LIKE 'manual:%'", '']],
    red: ['sweep/sweep', 'takes a manual run neither for a delivery'],
  },
  {
    promise: 'a manual run gives a rate its phase',
    file: 'src/sweep/accounts.ts',
    edits: [[" AND trigger IN ('rule', 'scheduler') AND NOT slot_guessed", '']],
    red: ['sweep/sweep', 'takes a manual run neither for a delivery'],
  },
  {
    promise: 'what timed out is not delivered again',
    file: 'infra/sql/owed.sql',
    edits: [["'skipped', 'failed', 'timed_out', 'lost')", "'skipped', 'failed', 'lost')"]],
    red: ['sql/accounts', 'what a job owes'],
  },
  {
    promise: 'a delivery that was held ends the slot',
    file: 'infra/sql/pay.sql',
    edits: [["('duplicate', 'too_late'", "('held', 'duplicate', 'too_late'"]],
    red: ['sql/accounts', 'what a job owes'],
  },
  {
    promise: 'a dead run counts as told once it is settled',
    file: 'infra/sql/settle_dead.sql',
    edits: [["publish_after = clock_timestamp() + interval '30 s'", 'published_at = clock_timestamp()']],
    red: ['path/publish', 'is sent the dead run that a claim has settled'],
  },
  {
    promise: 'a cancelled run counts as told',
    file: 'infra/sql/settle.sql',
    edits: [["publish_after = clock_timestamp() + interval '30 s'", 'published_at = clock_timestamp()']],
    red: ['path/publish', 'is sent a run that was cancelled'],
  },
  {
    promise: 'one’s own outcome waits behind the backlog',
    file: 'infra/sql/take_unpublished.sql',
    edits: [
      ['r.id = ANY (own) AND', 'false AND'],
      [' AND r.id <> ALL (own)', ''],
    ],
    red: ['sql/accounts', 'one’s own first'],
  },
  {
    promise: 'one sink’s part is done with when another has its',
    file: 'src/path/publish.ts',
    edits: [['const done = failures.length === 0', 'const done = now.length > 0']],
    red: ['path/publish', 'gets its part though another does not'],
  },
  {
    promise: 'a sink is sent what it had',
    file: 'src/path/publish.ts',
    edits: [['!sentTo.includes(sink.name) && sink', 'sink']],
    red: ['path/publish', 'gets its part though another does not'],
  },
  {
    promise: 'a sink is sent what it does not want',
    file: 'src/path/publish.ts',
    edits: [[' && sink.wants?.(run) !== false', '']],
    red: ['path/publish', 'a filter'],
  },
  {
    promise: 'a sink that never answers is waited for',
    file: 'src/path/publish.ts',
    edits: [['return Promise.race([answer, aborted]);', 'return answer;']],
    red: ['path/publish', 'that neither answers nor heeds its signal'],
  },
  {
    promise: 'lost is logged as information',
    file: 'src/observe/log-line.ts',
    edits: [["'lost', ", '']],
    red: ['path/publish', 'lost'],
  },
  {
    promise: 'timed_out is logged as information',
    file: 'src/observe/log-line.ts',
    edits: [["'timed_out', ", '']],
    red: ['path/publish', 'timed_out'],
  },
];

const project = fileURLToPath(new URL('../..', import.meta.url));

/**
 * @param part of the names of the promises to break; all, if it is not given
 * @returns whether every break was noticed
 */
export async function prove(part = ''): Promise<boolean> {
  const wanted = breaks.filter(({ promise }) => promise.includes(part));
  const copy = await copyOfProject();
  try {
    let noticed = 0;
    for (const one of wanted) if (await isNoticed(copy, one)) noticed += 1;
    console.log(`${noticed} of ${wanted.length} broken promises were noticed`);
    return noticed === wanted.length;
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
  const noticed = await goesRed(copy, red);
  await writeFile(path, sound);
  console.log(`${noticed ? 'noticed' : 'NOT NOTICED'}  ${promise}  (${red.join(': ')})`);
  return noticed;
}

function edit(text: string, find: string, replace: string, where: string): string {
  if (text.split(find).length !== 2) throw new Error(`prove: ${where} no longer has its line exactly once`);
  return text.replace(find, () => replace);
}

/** What vitest's report says, as far as it is asked here. */
interface Report {
  readonly testResults: readonly { readonly assertionResults: readonly { readonly status: string }[] }[];
}

/** A test has failed: not the file, which could not even be loaded, nor the set-up, where no test has run. */
async function goesRed(copy: string, [file, name]: readonly [string, string]): Promise<boolean> {
  const outcome = join(copy, 'report.json');
  await rm(outcome, { force: true });
  const asked = ['run', `test/${file}.test.ts`, '-t', name, '--reporter=json', `--outputFile=${outcome}`];
  const child = spawn(process.execPath, ['node_modules/vitest/vitest.mjs', ...asked], {
    cwd: copy,
    stdio: 'ignore',
  });
  await once(child, 'exit');
  const { testResults } = JSON.parse(await readFile(outcome, 'utf8')) as Report;
  return testResults.flatMap((one) => one.assertionResults).some(({ status }) => status === 'failed');
}

if (process.argv[1] === fileURLToPath(import.meta.url))
  process.exitCode = (await prove(process.argv[2])) ? 0 : 1;
