-- The coordinator's own schema: the run records, the locks' fences, and the functions which alone change them.
-- Every function pins its search_path, so a temporary table of a caller can't stand in for one of ours.

-- infra/migrate.ts has made the schema cronce.

CREATE TABLE cronce.job (
  name          text PRIMARY KEY,
  first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  paused_at     timestamptz,
  paused_by     text,
  pause_reason  text,
  CONSTRAINT job_pause_is_whole CHECK ((paused_at IS NULL) = (paused_by IS NULL))
);
COMMENT ON TABLE cronce.job IS 'What outlives deployments of a job: when it was first known, and whether it is paused.';

CREATE TABLE cronce.lock (
  key    bigint PRIMARY KEY,
  name   text   NOT NULL,
  fence  bigint NOT NULL,
  run_id uuid   NOT NULL,
  CONSTRAINT lock_fence_counts_from_one CHECK (fence >= 1)
);
COMMENT ON TABLE cronce.lock IS 'The last fence given out under each advisory lock key, and the run that got it.';

CREATE TABLE cronce.run (
  id                  uuid PRIMARY KEY,
  job                 text NOT NULL,
  slot                text NOT NULL,
  scheduled_for       timestamptz NOT NULL,
  slot_guessed        boolean NOT NULL DEFAULT false,
  trigger             text NOT NULL,
  delivery_id         text,
  requested_by        text,
  status              text NOT NULL,
  skip_reason         text,
  blocked_by          uuid,
  lock_name           text NOT NULL,
  lock_key            bigint,
  guard_key           bigint,
  fence               bigint,
  backend_pid         integer,
  attempt             integer,
  max_attempts        integer,
  after_lost          text NOT NULL DEFAULT 'rerun',
  final               boolean,
  lease_ms            integer,
  params              jsonb NOT NULL DEFAULT 'null',
  output              jsonb NOT NULL DEFAULT 'null',
  error               jsonb,
  received_at         timestamptz NOT NULL,
  claimed_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  started_at          timestamptz,
  finished_at         timestamptz,
  cancel_requested_at timestamptz,
  cancel_requested_by text,
  published_at        timestamptz,
  published_to        text[] NOT NULL DEFAULT '{}',
  publish_attempts    integer NOT NULL DEFAULT 0,
  publish_after       timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT run_status_known CHECK
    (status IN ('running', 'succeeded', 'failed', 'timed_out', 'lost', 'cancelled', 'skipped', 'missed')),
  CONSTRAINT run_skip_reason_known CHECK
    (skip_reason IN ('held', 'duplicate', 'paused', 'too_late', 'on_hold')),
  CONSTRAINT run_skipped_with_a_reason CHECK ((status = 'skipped') = (skip_reason IS NOT NULL)),
  CONSTRAINT run_over_has_an_end CHECK ((status = 'running') = (finished_at IS NULL)),
  CONSTRAINT run_started_under_a_fence CHECK
    (status IN ('skipped', 'missed') = (fence IS NULL) AND (fence IS NULL) = (attempt IS NULL)),
  CONSTRAINT run_after_lost_known CHECK (after_lost IN ('rerun', 'hold')),
  CONSTRAINT run_published_once_over CHECK (published_at IS NULL OR finished_at IS NOT NULL)
);
COMMENT ON COLUMN cronce.run.claimed_at IS 'By the server''s clock, always; safety decisions use this one.';
COMMENT ON COLUMN cronce.run.received_at IS 'By the coordinator''s clock, like started_at and finished_at.';
COMMENT ON COLUMN cronce.run.guard_key IS 'A second key that keeps duplicates of one slot apart where the lock has several places.';

-- The last line of 'once per slot': whatever goes wrong above it, two successes can't both commit.
CREATE UNIQUE INDEX run_one_success_per_slot ON cronce.run (job, slot) WHERE status = 'succeeded';
CREATE INDEX run_by_slot ON cronce.run (job, slot);
CREATE INDEX run_by_job ON cronce.run (job, id DESC);
CREATE INDEX run_unfinished_by_lock ON cronce.run (lock_key) WHERE status = 'running';
CREATE INDEX run_unfinished_by_guard ON cronce.run (guard_key) WHERE status = 'running' AND guard_key IS NOT NULL;
CREATE INDEX run_unpublished ON cronce.run (publish_after) WHERE published_at IS NULL AND finished_at IS NOT NULL;
CREATE INDEX run_old ON cronce.run (finished_at) WHERE finished_at IS NOT NULL;

-- The lock key of a name: the first 8 bytes of SHA-256 over namespace and name, big-endian, signed.
-- src/lock.ts derives the same; test/lock-key.test.ts holds both to golden values.
CREATE FUNCTION cronce.lock_key(namespace text, name text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN ('x' || encode(substr(sha256(convert_to(namespace || ':' || name, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint;

CREATE FUNCTION cronce.record(r cronce.run) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN jsonb_build_object(
  'id', r.id, 'job', r.job, 'slot', r.slot, 'scheduledFor', r.scheduled_for, 'slotGuessed', r.slot_guessed,
  'trigger', r.trigger, 'deliveryId', r.delivery_id, 'requestedBy', r.requested_by, 'status', r.status,
  'skipReason', r.skip_reason, 'blockedBy', r.blocked_by, 'lockName', r.lock_name, 'lockKey', r.lock_key::text,
  'fence', r.fence::text, 'attempt', r.attempt, 'maxAttempts', r.max_attempts, 'final', r.final,
  'leaseMs', r.lease_ms, 'params', r.params, 'output', r.output, 'error', r.error,
  'receivedAt', r.received_at, 'startedAt', r.started_at, 'finishedAt', r.finished_at,
  'cancelRequestedAt', r.cancel_requested_at, 'cancelRequestedBy', r.cancel_requested_by,
  'publishedAt', r.published_at);

-- Code and schema must fit. A migration marked breaking locks out code that was written before it.
CREATE FUNCTION cronce.require_schema(code_version integer) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  present integer;
  floor   integer;
BEGIN
  SELECT max(version), max(version) FILTER (WHERE breaking) INTO present, floor FROM cronce.migration;
  IF floor > code_version THEN
    RAISE EXCEPTION USING ERRCODE = 'CR001',
      MESSAGE = format('the database has schema version %s, this code knows %s', floor, code_version),
      HINT = 'deploy the newer Cronce';
  ELSIF present < code_version THEN
    RAISE EXCEPTION USING ERRCODE = 'CR002',
      MESSAGE = format('the database has schema version %s, this code needs %s', present, code_version),
      HINT = 'run `npm run migrate`';
  END IF;
END $$;

-- A crash of one backend restarts them all without a new postmaster: the checkpointer's age tells (where we may see it).
CREATE FUNCTION cronce.server_started_at() RETURNS timestamptz
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN greatest(pg_postmaster_start_time(),
  (SELECT max(backend_start) FROM pg_stat_activity WHERE backend_type = 'checkpointer'));

CREATE FUNCTION cronce.is_backend(pid integer) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN EXISTS (SELECT FROM pg_stat_get_activity(pid));

-- Whether a backend holds an advisory lock of the one-bigint space, by pg_locks.
CREATE FUNCTION cronce.holds(pid integer, key bigint) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN EXISTS (
  SELECT FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.granted AND l.pid = holds.pid AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((l.classid::bigint << 32) | l.objid::bigint) = holds.key);

-- COMMIT must mean durable here, whatever the role's default; a stricter setting is left alone.
CREATE FUNCTION cronce.demand_durability() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
END $$;

-- Ends unfinished runs as lost or, where someone had asked for it, cancelled. The caller has proof that they are dead,
-- under the fence that they had then: one that claimed anew meanwhile has another and is left alone.
CREATE FUNCTION cronce.settle_dead(ids uuid[], fences bigint[], at timestamptz, published boolean, why text)
RETURNS SETOF cronce.run
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  UPDATE cronce.run SET
    status = CASE WHEN cancel_requested_at IS NULL THEN 'lost' ELSE 'cancelled' END,
    final = cancel_requested_at IS NOT NULL OR after_lost = 'hold' OR attempt >= max_attempts,
    finished_at = greatest(at, started_at),
    published_at = CASE WHEN published THEN clock_timestamp() END,
    error = jsonb_build_object('name', 'HolderGone', 'message', why)
  WHERE (id, fence) IN (SELECT * FROM unnest(ids, fences)) AND status = 'running'
  RETURNING *;
END;

-- T0: takes the lock, and only then looks. A look in the lock's own statement would use a snapshot from before it.
-- p: {schema, now, published, again, gapMs, run{…}, lock{name, keys[], guard, waitMs, patienceMs}, policy{…}}
-- `again` claims anew for a run that had to give way between T0 and T1: the same record, a new fence.
CREATE FUNCTION cronce.claim(p jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  want    jsonb := p -> 'run';
  policy  jsonb := p -> 'policy';
  self    uuid := (want ->> 'id')::uuid;
  keys    bigint[] := ARRAY(SELECT k::bigint FROM jsonb_array_elements_text(p #> '{lock,keys}') k);
  guard   bigint := (p #>> '{lock,guard}')::bigint;
  wait_ms integer := coalesce((p #>> '{lock,waitMs}')::integer, 0);
  gap_ms  integer := (p ->> 'gapMs')::integer;
  patience_ms integer := coalesce((p #>> '{lock,patienceMs}')::integer, 0);
  by_hand boolean := (policy ->> 'byHand')::boolean;
  at      timestamptz := coalesce((p ->> 'now')::timestamptz, clock_timestamp());
  again   boolean := (p ->> 'again')::boolean;
  quiet   boolean := (p ->> 'published')::boolean;
  key     bigint;
  reason  text;
  blocker uuid;
  dead    uuid[];
  dead_fences bigint[];
  settled cronce.run[] := '{}';
  rests   integer := 0;
  tries   integer;
  token   bigint;
  made    cronce.run;
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = 'CR003', MESSAGE = 'this server is a standby',
      HINT = 'point the coordinator at the primary: a standby grants locks that the primary holds';
  END IF;
  PERFORM cronce.require_schema((p ->> 'schema')::integer);
  PERFORM cronce.demand_durability();
  INSERT INTO cronce.job (name, first_seen_at) VALUES (want ->> 'job', at) ON CONFLICT DO NOTHING;

  IF again THEN
    SELECT r.* INTO made FROM cronce.run r WHERE r.id = self;
    again := FOUND; -- a T0 that timed out has left none
    IF made.status <> 'running' THEN -- someone settled it meanwhile (a cancel): its outcome stands
      RETURN jsonb_build_object('run', cronce.record(made), 'restMs', 0, 'settled', '[]'::jsonb);
    END IF;
  END IF;

  key := CASE WHEN wait_ms > 0 THEN cronce.wait_for_one(keys, guard, self, gap_ms, wait_ms)
              ELSE cronce.take_one(keys, guard, self, gap_ms) END;
  FOR i IN 1 .. patience_ms / 10 LOOP
    -- Held, but by no run: another delivery is in its own T0 and may be about to skip. It would be wrong to give up a
    -- due slot for that; in a moment the holder shows, or the lock is free.
    EXIT WHEN key IS NOT NULL OR cronce.holder_of(keys, guard, self) IS NOT NULL;
    PERFORM pg_sleep(0.01);
    key := cronce.take_one(keys, guard, self, gap_ms);
  END LOOP;

  IF key IS NULL THEN
    SELECT r.id, 'duplicate' INTO blocker, reason FROM cronce.run r
      WHERE r.job = want ->> 'job' AND r.slot = want ->> 'slot' AND r.status = 'succeeded';
    IF reason IS NULL THEN
      reason := 'held';
      blocker := cronce.holder_of(keys, guard, self);
    END IF;
  ELSE
    SELECT array_agg(r.id), array_agg(r.fence) INTO dead, dead_fences FROM cronce.run r
      WHERE r.status = 'running' AND (r.lock_key = key OR r.guard_key = guard) AND r.id <> self;
    SELECT coalesce(array_agg(s), '{}') INTO settled FROM cronce.settle_dead(
      dead, dead_fences, at, quiet, 'its lock was free while it stood as running') AS s;
    SELECT d.reason, d.blocker INTO reason, blocker
      FROM cronce.refusal(want, policy, by_hand, at, self) d;
  END IF;

  IF reason IS NULL THEN
    rests := cronce.rest_after_restart(key);
    SELECT count(*) + 1 INTO tries FROM cronce.run r
      WHERE r.job = want ->> 'job' AND r.slot = want ->> 'slot' AND r.attempt IS NOT NULL
        AND r.status <> 'running' AND r.id <> self;
    INSERT INTO cronce.lock AS l (key, name, fence, run_id) VALUES (key, p #>> '{lock,name}', 1, self)
      ON CONFLICT ON CONSTRAINT lock_pkey
      DO UPDATE SET fence = l.fence + 1, run_id = excluded.run_id, name = excluded.name
      RETURNING l.fence INTO token;
  END IF;

  IF again THEN
    UPDATE cronce.run r SET
        status = CASE WHEN reason IS NULL THEN 'running' ELSE 'skipped' END,
        skip_reason = reason, blocked_by = blocker, lock_key = key, fence = token, claimed_at = clock_timestamp(),
        attempt = CASE WHEN reason IS NULL THEN tries END,
        started_at = CASE WHEN reason IS NULL THEN at END,
        finished_at = CASE WHEN reason IS NOT NULL THEN at END,
        published_at = CASE WHEN reason IS NOT NULL AND quiet THEN clock_timestamp() END
      WHERE r.id = self AND r.status = 'running' RETURNING r.* INTO made;
    IF NOT FOUND THEN
      SELECT r.* INTO made FROM cronce.run r WHERE r.id = self;
    END IF;
  ELSE
    INSERT INTO cronce.run (id, job, slot, scheduled_for, slot_guessed, trigger, delivery_id, requested_by, params,
        status, skip_reason, blocked_by, lock_name, lock_key, guard_key, fence, backend_pid, attempt, max_attempts,
        after_lost, lease_ms, received_at, started_at, finished_at, published_at)
      VALUES (self, want ->> 'job', want ->> 'slot', (want ->> 'scheduledFor')::timestamptz,
        (want ->> 'slotGuessed')::boolean, want ->> 'trigger', want ->> 'deliveryId', want ->> 'requestedBy',
        want -> 'params', CASE WHEN reason IS NULL THEN 'running' ELSE 'skipped' END, reason, blocker,
        p #>> '{lock,name}', key, guard, token, pg_backend_pid(),
        CASE WHEN reason IS NULL THEN tries END, (policy ->> 'maxAttempts')::integer, policy ->> 'afterLost',
        (p ->> 'leaseMs')::integer, at, CASE WHEN reason IS NULL THEN at END,
        CASE WHEN reason IS NOT NULL THEN at END,
        CASE WHEN reason IS NOT NULL AND quiet THEN clock_timestamp() END)
      RETURNING * INTO made;
  END IF;

  RETURN jsonb_build_object('run', cronce.record(made), 'restMs', rests,
    'settled', (SELECT coalesce(jsonb_agg(cronce.record(s)), '[]') FROM unnest(settled) s));
END $$;

-- Whether another run stands between its T0 and T1: it holds no lock yet, but its backend lives and it is about to. The
-- caller has the lock, so no such run is inside. It comes first: to run now would only make it give way.
CREATE FUNCTION cronce.is_starting(key bigint, guard bigint, self uuid, gap_ms integer) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN EXISTS (SELECT FROM cronce.run r
  WHERE r.status = 'running' AND (r.lock_key = is_starting.key OR r.guard_key = is_starting.guard) AND r.id <> self
    AND r.claimed_at > clock_timestamp() - make_interval(secs => gap_ms / 1000.0) AND cronce.is_backend(r.backend_pid));

-- The first free key of a lock's places, or null. The guard, where there is one, is taken first.
CREATE FUNCTION cronce.take_one(keys bigint[], guard bigint, self uuid, gap_ms integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  k bigint;
BEGIN
  IF guard IS NOT NULL AND NOT pg_try_advisory_xact_lock(guard) THEN
    RETURN NULL;
  END IF;
  FOREACH k IN ARRAY keys LOOP
    IF pg_try_advisory_xact_lock(k) AND NOT cronce.is_starting(k, guard, self, gap_ms) THEN
      RETURN k;
    END IF;
  END LOOP;
  RETURN NULL;
END $$;

-- The same, waiting. Whoever gets the lock while another is between its T0 and T1 lets go again: among several that
-- wait, each would otherwise be overtaken in that moment, for ever. A transaction lock is let go by leaving its block.
CREATE FUNCTION cronce.wait_for_one(keys bigint[], guard bigint, self uuid, gap_ms integer, wait_ms integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  usual text := current_setting('lock_timeout');
  until timestamptz := clock_timestamp() + make_interval(secs => wait_ms / 1000.0);
  k     bigint;
BEGIN
  LOOP
    SELECT u INTO k FROM unnest(keys) u
      ORDER BY EXISTS (SELECT FROM cronce.run r WHERE r.status = 'running' AND r.lock_key = u), random() LIMIT 1;
    BEGIN
      PERFORM set_config('lock_timeout', -- undone with the block where it fails
        greatest(1, ceil(extract(epoch FROM until - clock_timestamp()) * 1000))::integer::text, true);
      PERFORM pg_advisory_xact_lock(guard) WHERE guard IS NOT NULL;
      PERFORM pg_advisory_xact_lock(k);
      IF NOT cronce.is_starting(k, guard, self, gap_ms) THEN
        PERFORM set_config('lock_timeout', usual, true);
        RETURN k;
      END IF;
      RAISE EXCEPTION USING ERRCODE = 'CR005';
    EXCEPTION
      WHEN lock_not_available THEN RETURN NULL;
      WHEN SQLSTATE 'CR005' THEN
        IF clock_timestamp() > until THEN RETURN NULL; END IF;
        PERFORM pg_sleep(0.01);
    END;
  END LOOP;
END $$;

-- Who stands in the way: the last run that got a fence under one of these keys and still stands as running.
-- Null where a client that is not ours holds the key.
CREATE FUNCTION cronce.holder_of(keys bigint[], guard bigint, self uuid) RETURNS uuid
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN (SELECT r.id FROM cronce.run r
  WHERE r.status = 'running' AND r.id <> self AND (r.lock_key = ANY (keys) OR r.guard_key = guard)
  ORDER BY (r.guard_key = guard) DESC NULLS LAST, r.fence DESC LIMIT 1);

-- Why a delivery that has the lock should not run all the same; no row where it should.
CREATE FUNCTION cronce.refusal(want jsonb, policy jsonb, by_hand boolean, at timestamptz, self uuid)
RETURNS TABLE (reason text, blocker uuid)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN QUERY SELECT 'duplicate', r.id FROM cronce.run r
    WHERE r.job = want ->> 'job' AND r.slot = want ->> 'slot' AND r.status = 'succeeded';
  IF FOUND OR by_hand THEN -- an operator may run a failed, held or missed slot again, paused or late
    RETURN;
  END IF;
  RETURN QUERY SELECT CASE WHEN r.status = 'lost' AND r.after_lost = 'hold' THEN 'on_hold' ELSE 'duplicate' END, r.id
    FROM cronce.run r
    WHERE r.job = want ->> 'job' AND r.slot = want ->> 'slot' AND r.final AND r.id <> self
    ORDER BY (r.status = 'lost') DESC, r.id DESC LIMIT 1;
  IF FOUND THEN
    RETURN;
  END IF;
  RETURN QUERY SELECT 'paused', NULL::uuid FROM cronce.job j WHERE j.name = want ->> 'job' AND j.paused_at IS NOT NULL;
  IF FOUND THEN
    RETURN;
  END IF;
  IF (want ->> 'scheduledFor')::timestamptz
     + make_interval(secs => (policy ->> 'startDeadlineMs')::numeric / 1000) < at THEN
    RETURN QUERY SELECT 'too_late', NULL::uuid;
  END IF;
END $$;

-- A restart frees every lock at once, while a holder that is cut off works on until its own countdown ends.
-- Milliseconds until the last holder of this key, if it never came to an end of its own, has surely stopped.
CREATE FUNCTION cronce.rest_after_restart(key bigint) RETURNS integer
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN coalesce((
  SELECT ceil(greatest(0, extract(epoch FROM s.started_at + make_interval(secs => r.lease_ms / 1000.0)
                                             - clock_timestamp()) * 1000))::integer
  FROM cronce.lock l JOIN cronce.run r ON r.id = l.run_id, cronce.server_started_at() AS s (started_at)
  WHERE l.key = rest_after_restart.key AND r.status IN ('running', 'lost', 'cancelled')
    AND r.claimed_at < s.started_at), 0);

-- T1: takes the same lock again, waiting, and checks that the run still stands and its fence is the last. T0's commit
-- frees the lock for a moment. A claim that gets it in that moment sees that another is starting and lets it go; should
-- one slip in all the same (a stranger holds the key for long, a clock jumps), it has a higher fence, and the lower gives way.
CREATE FUNCTION cronce.enter(self uuid) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  mine cronce.run;
BEGIN
  SELECT * INTO mine FROM cronce.run WHERE id = self;
  IF cronce.stands(self) THEN
    -- A killed client's socket closes at once, but a backend in the middle of a statement would only notice at its end.
    BEGIN
      PERFORM set_config('client_connection_check_interval', '500ms', true);
    EXCEPTION WHEN OTHERS THEN
      NULL; -- a platform that can't look; then the statement's end or its time limit frees the lock
    END;
    IF mine.guard_key IS NOT NULL THEN
      PERFORM pg_advisory_xact_lock(mine.guard_key);
    END IF;
    PERFORM pg_advisory_xact_lock(mine.lock_key);
  END IF;
  RETURN jsonb_build_object('entered', cronce.stands(self), 'pid', pg_backend_pid(),
    'lease', current_setting('idle_in_transaction_session_timeout'));
END $$;

CREATE FUNCTION cronce.stands(self uuid) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN EXISTS (SELECT FROM cronce.run r JOIN cronce.lock l ON l.key = r.lock_key
  WHERE r.id = self AND r.status = 'running' AND l.fence = r.fence AND l.run_id = r.id);

-- Records the outcome inside T1. Raises, so that the COMMIT sent behind it does nothing, unless exactly this run,
-- still running, under the lock's current fence, is what it touches.
-- p: {id, status, final, output, error, now, published}
CREATE FUNCTION cronce.finish(p jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  self uuid := (p ->> 'id')::uuid;
  made cronce.run;
BEGIN
  PERFORM cronce.demand_durability();
  UPDATE cronce.run r SET
      status = p ->> 'status',
      final = p ->> 'status' IN ('succeeded', 'cancelled') OR (p ->> 'final')::boolean
              OR r.attempt >= r.max_attempts,
      output = coalesce(p -> 'output', 'null'), error = nullif(p -> 'error', 'null'),
      finished_at = greatest(coalesce((p ->> 'now')::timestamptz, clock_timestamp()), r.started_at),
      published_at = CASE WHEN (p ->> 'published')::boolean THEN clock_timestamp() END
    WHERE r.id = self AND cronce.stands(self) AND r.status = 'running'
    RETURNING r.* INTO made;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'CR004', MESSAGE = 'the run no longer stands as running under the last fence';
  END IF;
  RETURN cronce.record(made);
END $$;

-- Records an outcome from outside T1, where its connection is dead. What stands already is answered unchanged.
-- A run whose end someone had asked for and that was then lost was cancelled.
CREATE FUNCTION cronce.settle(p jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  self uuid := (p ->> 'id')::uuid;
  made cronce.run;
BEGIN
  PERFORM cronce.demand_durability();
  UPDATE cronce.run r SET
      status = CASE WHEN p ->> 'status' = 'lost' AND r.cancel_requested_at IS NOT NULL THEN 'cancelled'
                    ELSE p ->> 'status' END,
      final = p ->> 'status' = 'cancelled' OR r.cancel_requested_at IS NOT NULL OR (p ->> 'final')::boolean
              OR (p ->> 'status' = 'lost' AND r.after_lost = 'hold') OR r.attempt >= r.max_attempts,
      error = nullif(p -> 'error', 'null'),
      finished_at = greatest(coalesce((p ->> 'now')::timestamptz, clock_timestamp()), r.started_at),
      published_at = CASE WHEN (p ->> 'published')::boolean THEN clock_timestamp() END
    WHERE r.id = self AND r.status = 'running'
    RETURNING r.* INTO made;
  IF NOT FOUND THEN
    SELECT * INTO made FROM cronce.run WHERE id = self;
  ELSE
    PERFORM cronce.end_holder(made);
  END IF;
  RETURN CASE WHEN made.id IS NOT NULL THEN cronce.record(made) END;
END $$;

-- Ends the backend that still holds a settled run's lock: a statement nobody waits for, a socket nobody reads.
-- Exact, also behind a pooler: the caller has the run's row, so its holder can't finish; and the fence's row is
-- held here, so nobody can succeed it under this fence while we look.
CREATE FUNCTION cronce.end_holder(r cronce.run) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF r.backend_pid = pg_backend_pid() OR NOT cronce.demand_fence(r.lock_key, r.fence) THEN
    RETURN false;
  END IF;
  RETURN cronce.holds(r.backend_pid, r.lock_key) AND pg_terminate_backend(r.backend_pid);
EXCEPTION WHEN insufficient_privilege THEN
  RETURN false; -- another role's session: the lease will end it
END $$;

-- For a holder whose heartbeats can't pass a long statement: whether its backend is at work and holds the lock. The
-- idle timer stands still until the statement ends, so the holder then has at least one lease from the asking on.
CREATE FUNCTION cronce.watch(pid integer, key bigint, self uuid) RETURNS jsonb
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN jsonb_build_object(
  'atWork', coalesce((SELECT a.state = 'active' FROM pg_stat_get_activity(watch.pid) a), false)
            AND cronce.holds(watch.pid, watch.key),
  'cancelBy', (SELECT r.cancel_requested_by FROM cronce.run r WHERE r.id = self));

-- For a transaction of its own beside T1: true, and the fence then held until it ends, while the fence is the last.
CREATE FUNCTION cronce.demand_fence(key bigint, fence bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM cronce.lock l WHERE l.key = demand_fence.key AND l.fence = demand_fence.fence FOR SHARE;
  RETURN FOUND;
END $$;

-- Asks for the end of a run: its holder hears of it with the next heartbeat. One that holds no lock is ended here.
-- Null where there is no such run; one that is over is answered as it is.
CREATE FUNCTION cronce.request_cancel(self uuid, by text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made cronce.run;
BEGIN
  UPDATE cronce.run r SET
      cancel_requested_at = coalesce(r.cancel_requested_at, clock_timestamp()),
      cancel_requested_by = coalesce(r.cancel_requested_by, by)
    WHERE r.id = self AND r.status = 'running' RETURNING r.* INTO made;
  IF FOUND AND NOT cronce.holds(made.backend_pid, made.lock_key) THEN
    PERFORM cronce.settle_dead(
      ARRAY[self], ARRAY[made.fence], clock_timestamp(), false, 'cancelled while nobody held its lock');
  END IF;
  SELECT * INTO made FROM cronce.run WHERE id = self;
  RETURN CASE WHEN made.id IS NOT NULL THEN cronce.record(made) END;
END $$;

-- For `overlap: 'replace'`: the run of an earlier slot of the same job that stands in the way, once its end is asked
-- for. Null where none does, or where the delivery is itself a duplicate: that must not end a later slot's run.
CREATE FUNCTION cronce.request_replace(job text, slot text, scheduled_for timestamptz, keys bigint[]) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  holder uuid;
BEGIN
  SELECT r.id INTO holder FROM cronce.run r
    WHERE r.status = 'running' AND r.lock_key = ANY (keys) AND r.job = request_replace.job
      AND r.slot <> request_replace.slot AND r.scheduled_for <= request_replace.scheduled_for
      AND NOT EXISTS (SELECT FROM cronce.run d
                      WHERE d.job = request_replace.job AND d.slot = request_replace.slot AND d.final)
    ORDER BY r.scheduled_for LIMIT 1;
  PERFORM cronce.request_cancel(holder, 'the run of ' || request_replace.slot) WHERE holder IS NOT NULL;
  RETURN holder;
END $$;

-- Start records whose holder is gone, exactly: their backend does not hold their key. Younger ones than `gap_ms` may
-- be between T0 and T1; after a restart nobody is dead before a lease has passed. pg_locks is read in a statement of
-- its own, after the records: what finished in between is settled already, and no longer `running` for whoever settles.
CREATE FUNCTION cronce.orphans(gap_ms integer, most integer) RETURNS TABLE (id uuid, fence bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  up    interval := clock_timestamp() - cronce.server_started_at();
  stale cronce.run[];
BEGIN
  SELECT array_agg(r) INTO stale FROM (
    SELECT * FROM cronce.run c
    WHERE c.status = 'running' AND c.claimed_at < clock_timestamp() - make_interval(secs => gap_ms / 1000.0)
      AND up > make_interval(secs => c.lease_ms / 1000.0)
    ORDER BY c.claimed_at LIMIT most) r;
  RETURN QUERY SELECT r.id, r.fence FROM unnest(stale) r WHERE NOT cronce.holds(r.backend_pid, r.lock_key);
END $$;

-- The outbox: what is over and not yet published, the caller's own record first. Rows stay locked until the caller
-- commits, and others pass them by.
CREATE FUNCTION cronce.take_unpublished(own uuid, most integer) RETURNS jsonb
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('run', cronce.record(due), 'sentTo', due.published_to)), '[]')
  FROM (SELECT r.* FROM cronce.run r
        WHERE r.published_at IS NULL AND r.finished_at IS NOT NULL
          AND (r.id = own OR r.publish_after <= clock_timestamp())
        ORDER BY (r.id = own) DESC NULLS LAST, r.publish_after LIMIT most FOR UPDATE SKIP LOCKED) due);

-- sent: [{id, sentTo[], done}]. What is not done is tried again, at growing intervals of up to an hour.
CREATE FUNCTION cronce.mark_published(sent jsonb) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  UPDATE cronce.run r SET
    published_to = ARRAY(SELECT jsonb_array_elements_text(s.one -> 'sentTo')),
    published_at = CASE WHEN (s.one ->> 'done')::boolean THEN clock_timestamp() END,
    publish_attempts = r.publish_attempts + 1,
    publish_after = clock_timestamp() + least(interval '10 seconds' * 2 ^ least(r.publish_attempts, 10), interval '1 hour')
  FROM jsonb_array_elements(sent) AS s (one)
  WHERE r.id = (s.one ->> 'id')::uuid;
END;
