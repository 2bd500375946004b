
TABLE cronce.example_migration
  version integer NOT NULL
  name text NOT NULL
  breaking boolean NOT NULL DEFAULT true
  applied_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()

TABLE cronce.job
  name text NOT NULL
  first_seen_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
  paused_at timestamp with time zone
  paused_by text
  pause_reason text

TABLE cronce.lock
  key bigint NOT NULL
  name text NOT NULL
  fence bigint NOT NULL
  run_id uuid NOT NULL

TABLE cronce.migration
  version integer NOT NULL
  name text NOT NULL
  breaking boolean NOT NULL DEFAULT true
  applied_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()

TABLE cronce.pause
  job text NOT NULL
  paused_at timestamp with time zone NOT NULL
  paused_by text NOT NULL
  reason text
  resumed_at timestamp with time zone
  resumed_by text

TABLE cronce.run
  id uuid NOT NULL
  job text NOT NULL
  slot text NOT NULL
  scheduled_for timestamp with time zone NOT NULL
  slot_guessed boolean NOT NULL DEFAULT false
  trigger text NOT NULL
  delivery_id text
  requested_by text
  status text NOT NULL
  skip_reason text
  blocked_by uuid
  lock_name text NOT NULL
  lock_key bigint
  guard_key bigint
  fence bigint
  backend_pid integer
  attempt integer
  max_attempts integer
  after_lost text NOT NULL DEFAULT 'rerun'::text
  final boolean
  lease_ms integer
  params jsonb NOT NULL DEFAULT 'null'::jsonb
  output jsonb NOT NULL DEFAULT 'null'::jsonb
  error jsonb
  received_at timestamp with time zone NOT NULL
  claimed_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
  started_at timestamp with time zone
  finished_at timestamp with time zone
  cancel_requested_at timestamp with time zone
  cancel_requested_by text
  published_at timestamp with time zone
  published_to text[] NOT NULL DEFAULT '{}'::text[]
  publish_attempts integer NOT NULL DEFAULT 0
  publish_after timestamp with time zone NOT NULL DEFAULT clock_timestamp()

TABLE cronce.schedule
  job text NOT NULL
  expression text NOT NULL
  time_zone text NOT NULL
  known_since timestamp with time zone NOT NULL
  accounted_until timestamp with time zone NOT NULL
CONSTRAINT example_migration.example_migration_pkey PRIMARY KEY (version)
CONSTRAINT job.job_pause_is_whole CHECK (((paused_at IS NULL) = (paused_by IS NULL)))
CONSTRAINT job.job_pkey PRIMARY KEY (name)
CONSTRAINT lock.lock_fence_counts_from_one CHECK ((fence >= 1))
CONSTRAINT lock.lock_pkey PRIMARY KEY (key)
CONSTRAINT migration.migration_pkey PRIMARY KEY (version)
CONSTRAINT pause.pause_ends_after_it_began CHECK ((resumed_at >= paused_at))
CONSTRAINT pause.pause_ends_whole CHECK (((resumed_at IS NULL) = (resumed_by IS NULL)))
CONSTRAINT pause.pause_pkey PRIMARY KEY (job, paused_at)
CONSTRAINT run.run_after_lost_known CHECK ((after_lost = ANY (ARRAY['rerun'::text, 'hold'::text])))
CONSTRAINT run.run_over_has_an_end CHECK (((status = 'running'::text) = (finished_at IS NULL)))
CONSTRAINT run.run_pkey PRIMARY KEY (id)
CONSTRAINT run.run_published_once_over CHECK (((published_at IS NULL) OR (finished_at IS NOT NULL)))
CONSTRAINT run.run_skip_reason_known CHECK ((skip_reason = ANY (ARRAY['held'::text, 'duplicate'::text, 'paused'::text, 'too_late'::text, 'on_hold'::text])))
CONSTRAINT run.run_skipped_with_a_reason CHECK (((status = 'skipped'::text) = (skip_reason IS NOT NULL)))
CONSTRAINT run.run_started_under_a_fence CHECK ((((status = ANY (ARRAY['skipped'::text, 'missed'::text])) = (fence IS NULL)) AND ((fence IS NULL) = (attempt IS NULL))))
CONSTRAINT run.run_status_known CHECK ((status = ANY (ARRAY['running'::text, 'succeeded'::text, 'failed'::text, 'timed_out'::text, 'lost'::text, 'cancelled'::text, 'skipped'::text, 'missed'::text])))
CONSTRAINT schedule.schedule_accounted_since_known CHECK ((accounted_until >= known_since))
CONSTRAINT schedule.schedule_pkey PRIMARY KEY (job, expression, time_zone)
CREATE UNIQUE INDEX example_migration_pkey ON cronce.example_migration USING btree (version)
CREATE UNIQUE INDEX job_pkey ON cronce.job USING btree (name)
CREATE UNIQUE INDEX lock_pkey ON cronce.lock USING btree (key)
CREATE UNIQUE INDEX migration_pkey ON cronce.migration USING btree (version)
CREATE UNIQUE INDEX pause_one_open ON cronce.pause USING btree (job) WHERE (resumed_at IS NULL)
CREATE UNIQUE INDEX pause_pkey ON cronce.pause USING btree (job, paused_at)
CREATE INDEX run_by_due_time ON cronce.run USING btree (job, scheduled_for)
CREATE INDEX run_by_job ON cronce.run USING btree (job, id DESC)
CREATE INDEX run_by_slot ON cronce.run USING btree (job, slot)
CREATE INDEX run_old ON cronce.run USING btree (finished_at) WHERE (finished_at IS NOT NULL)
CREATE UNIQUE INDEX run_one_success_per_slot ON cronce.run USING btree (job, slot) WHERE (status = 'succeeded'::text)
CREATE UNIQUE INDEX run_pkey ON cronce.run USING btree (id)
CREATE INDEX run_unfinished_by_guard ON cronce.run USING btree (guard_key) WHERE ((status = 'running'::text) AND (guard_key IS NOT NULL))
CREATE INDEX run_unfinished_by_lock ON cronce.run USING btree (lock_key) WHERE (status = 'running'::text)
CREATE INDEX run_unfinished_slots ON cronce.run USING btree (finished_at) WHERE (final = false)
CREATE INDEX run_unpublished ON cronce.run USING btree (publish_after) WHERE ((published_at IS NULL) AND (finished_at IS NOT NULL))
CREATE UNIQUE INDEX schedule_pkey ON cronce.schedule USING btree (job, expression, time_zone)

CREATE OR REPLACE FUNCTION cronce.abandoned(patience_ms bigint, most integer, at timestamp with time zone, since timestamp with time zone)
 RETURNS jsonb
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN (SELECT COALESCE(jsonb_agg(cronce.record(ROW(a.id, a.job, a.slot, a.scheduled_for, a.slot_guessed, a.trigger, a.delivery_id, a.requested_by, a.status, a.skip_reason, a.blocked_by, a.lock_name, a.lock_key, a.guard_key, a.fence, a.backend_pid, a.attempt, a.max_attempts, a.after_lost, a.final, a.lease_ms, a.params, a.output, a.error, a.received_at, a.claimed_at, a.started_at, a.finished_at, a.cancel_requested_at, a.cancel_requested_by, a.published_at, a.published_to, a.publish_attempts, a.publish_after)) ORDER BY a.scheduled_for, a.id), '[]'::jsonb) AS "coalesce" FROM (SELECT r.id, r.job, r.slot, r.scheduled_for, r.slot_guessed, r.trigger, r.delivery_id, r.requested_by, r.status, r.skip_reason, r.blocked_by, r.lock_name, r.lock_key, r.guard_key, r.fence, r.backend_pid, r.attempt, r.max_attempts, r.after_lost, r.final, r.lease_ms, r.params, r.output, r.error, r.received_at, r.claimed_at, r.started_at, r.finished_at, r.cancel_requested_at, r.cancel_requested_by, r.published_at, r.published_to, r.publish_attempts, r.publish_after FROM cronce.run r WHERE ((r.status = ANY (ARRAY['lost'::text, 'failed'::text, 'timed_out'::text])) AND (r.final = false) AND (r.finished_at >= abandoned.since) AND (r.finished_at < (COALESCE(abandoned.at, clock_timestamp()) - make_interval(secs => (((abandoned.patience_ms)::numeric / 1000.0))::double precision))) AND (NOT (EXISTS (SELECT FROM cronce.run l WHERE ((l.job = r.job) AND (l.slot = r.slot) AND (l.id > r.id) AND ((l.skip_reason IS DISTINCT FROM 'held'::text) OR (l.received_at > (COALESCE(abandoned.at, clock_timestamp()) - make_interval(secs => (((abandoned.patience_ms)::numeric / 1000.0))::double precision))))))))) ORDER BY r.scheduled_for, r.id LIMIT abandoned.most) a)


CREATE OR REPLACE FUNCTION cronce.account(p jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  at   timestamptz := coalesce((p ->> 'now')::timestamptz, clock_timestamp());
  made cronce.run[];
BEGIN
  WITH slots AS (
    SELECT g.slot, g."scheduledFor" AS due, EXISTS (
        SELECT FROM cronce.pause z WHERE z.job = p ->> 'job' AND g."scheduledFor" >= z.paused_at
          AND (z.resumed_at IS NULL OR g."scheduledFor" < z.resumed_at)) AS paused
    FROM jsonb_to_recordset(p -> 'slots') g (id uuid, slot text, "scheduledFor" timestamptz)),
  ids AS (SELECT g.id, g.slot FROM jsonb_to_recordset(p -> 'slots') g (id uuid, slot text)),
  inserted AS (
    INSERT INTO cronce.run (id, job, slot, scheduled_for, trigger, status, skip_reason, lock_name, received_at,
        finished_at, published_at)
      SELECT i.id, p ->> 'job', s.slot, s.due, 'sweep', CASE WHEN s.paused THEN 'skipped' ELSE 'missed' END,
        CASE WHEN s.paused THEN 'paused' END, p ->> 'lockName', at, at,
        CASE WHEN (p ->> 'published')::boolean THEN clock_timestamp() END
      FROM slots s JOIN ids i USING (slot)
      RETURNING *)
  SELECT coalesce(array_agg(x ORDER BY x.scheduled_for), '{}') INTO made FROM inserted x;
  UPDATE cronce.schedule s SET accounted_until = greatest(s.accounted_until, (p ->> 'until')::timestamptz)
    WHERE s.job = p ->> 'job' AND s.expression = p ->> 'expression' AND s.time_zone = p ->> 'timeZone';
  RETURN (SELECT coalesce(jsonb_agg(cronce.record(r)), '[]') FROM unnest(made) r);
END $function$


CREATE OR REPLACE FUNCTION cronce.claim(p jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION cronce.delivered(job text, since timestamp with time zone, until timestamp with time zone)
 RETURNS timestamp with time zone[]
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN ARRAY(SELECT DISTINCT r.scheduled_for FROM cronce.run r WHERE ((r.job = delivered.job) AND (r.slot !~~ 'manual:%'::text) AND ((r.scheduled_for >= delivered.since) AND (r.scheduled_for <= delivered.until))) ORDER BY r.scheduled_for)


CREATE OR REPLACE FUNCTION cronce.demand_durability()
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
END $function$


CREATE OR REPLACE FUNCTION cronce.demand_fence(key bigint, fence bigint)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  PERFORM FROM cronce.lock l WHERE l.key = demand_fence.key AND l.fence = demand_fence.fence FOR SHARE;
  RETURN FOUND;
END $function$


CREATE OR REPLACE FUNCTION cronce.end_holder(r cronce.run)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF r.backend_pid = pg_backend_pid() OR NOT cronce.demand_fence(r.lock_key, r.fence) THEN
    RETURN false;
  END IF;
  RETURN cronce.holds(r.backend_pid, r.lock_key) AND pg_terminate_backend(r.backend_pid);
EXCEPTION WHEN insufficient_privilege THEN
  RETURN false; -- another role's session: the lease will end it
END $function$


CREATE OR REPLACE FUNCTION cronce.enter(self uuid)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION cronce.finish(p jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION cronce.holder_of(keys bigint[], guard bigint, self uuid)
 RETURNS uuid
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN (SELECT r.id FROM cronce.run r WHERE ((r.status = 'running'::text) AND (r.id <> holder_of.self) AND ((r.lock_key = ANY (holder_of.keys)) OR (r.guard_key = holder_of.guard))) ORDER BY (r.guard_key = holder_of.guard) DESC NULLS LAST, r.fence DESC LIMIT 1)


CREATE OR REPLACE FUNCTION cronce.holds(pid integer, key bigint)
 RETURNS boolean
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN (EXISTS (SELECT FROM pg_locks l WHERE ((l.locktype = 'advisory'::text) AND l.granted AND (l.pid = holds.pid) AND (l.objsubid = 1) AND (l.database = (SELECT pg_database.oid FROM pg_database WHERE (pg_database.datname = current_database()))) AND ((((l.classid)::bigint << 32) | (l.objid)::bigint) = holds.key))))


CREATE OR REPLACE FUNCTION cronce.is_backend(pid integer)
 RETURNS boolean
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN (EXISTS (SELECT FROM pg_stat_get_activity(is_backend.pid) pg_stat_get_activity(datid, pid, usesysid, application_name, state, query, wait_event_type, wait_event, xact_start, query_start, backend_start, state_change, client_addr, client_hostname, client_port, backend_xid, backend_xmin, backend_type, ssl, sslversion, sslcipher, sslbits, ssl_client_dn, ssl_client_serial, ssl_issuer_dn, gss_auth, gss_princ, gss_enc, gss_delegation, leader_pid, query_id)))


CREATE OR REPLACE FUNCTION cronce.is_starting(key bigint, guard bigint, self uuid, gap_ms integer)
 RETURNS boolean
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN (EXISTS (SELECT FROM cronce.run r WHERE ((r.status = 'running'::text) AND ((r.lock_key = is_starting.key) OR (r.guard_key = is_starting.guard)) AND (r.id <> is_starting.self) AND (r.claimed_at > (clock_timestamp() - make_interval(secs => (((is_starting.gap_ms)::numeric / 1000.0))::double precision))) AND cronce.is_backend(r.backend_pid))))


CREATE OR REPLACE FUNCTION cronce.know_schedules(given jsonb, at timestamp with time zone)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  DELETE FROM cronce.schedule s WHERE NOT EXISTS (
    SELECT FROM jsonb_to_recordset(given) g (job text, expression text, "timeZone" text)
    WHERE g.job = s.job AND g.expression = s.expression AND g."timeZone" = s.time_zone);
  INSERT INTO cronce.schedule (job, expression, time_zone, known_since, accounted_until)
    SELECT g.job, g.expression, g."timeZone", at, at
    FROM jsonb_to_recordset(given) g (job text, expression text, "timeZone" text)
    ON CONFLICT DO NOTHING;
  INSERT INTO cronce.job (name, first_seen_at)
    SELECT DISTINCT g.job, at FROM jsonb_to_recordset(given) g (job text) ON CONFLICT DO NOTHING;
  RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('job', s.job, 'expression', s.expression, 'timeZone', s.time_zone,
      'knownSince', s.known_since, 'accountedUntil', s.accounted_until)), '[]') FROM cronce.schedule s);
END $function$


CREATE OR REPLACE FUNCTION cronce.lock_key(namespace text, name text)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN ((('x'::text || encode(substr(sha256(convert_to(((namespace || ':'::text) || name), 'UTF8'::name)), 1, 8), 'hex'::text)))::bit(64))::bigint


CREATE OR REPLACE FUNCTION cronce.mark_published(sent jsonb)
 RETURNS void
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
BEGIN ATOMIC
 UPDATE cronce.run r SET published_to = ARRAY( SELECT jsonb_array_elements_text((s.one -> 'sentTo'::text)) AS jsonb_array_elements_text), published_at =
         CASE
             WHEN ((s.one ->> 'done'::text))::boolean THEN clock_timestamp()
             ELSE NULL::timestamp with time zone
         END, publish_attempts = (r.publish_attempts + 1), publish_after = (clock_timestamp() + LEAST(('00:00:10'::interval * ((2)::double precision ^ (LEAST(r.publish_attempts, 10))::double precision)), '01:00:00'::interval))
    FROM jsonb_array_elements(mark_published.sent) s(one)
   WHERE (r.id = ((s.one ->> 'id'::text))::uuid);
END


CREATE OR REPLACE FUNCTION cronce.orphans(gap_ms integer, most integer)
 RETURNS TABLE(id uuid, fence bigint)
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION cronce.pause_job(name text, by text, reason text, at timestamp with time zone)
 RETURNS cronce.job
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  made cronce.job;
BEGIN
  INSERT INTO cronce.job (name, first_seen_at) VALUES (pause_job.name, coalesce(at, clock_timestamp())) ON CONFLICT DO NOTHING;
  UPDATE cronce.job j SET paused_at = coalesce(at, clock_timestamp()), paused_by = by, pause_reason = reason
    WHERE j.name = pause_job.name AND j.paused_at IS NULL RETURNING j.* INTO made;
  IF FOUND THEN
    INSERT INTO cronce.pause (job, paused_at, paused_by, reason) VALUES (made.name, made.paused_at, by, pause_job.reason);
  ELSE
    SELECT * INTO made FROM cronce.job j WHERE j.name = pause_job.name;
  END IF;
  RETURN made;
END $function$


CREATE OR REPLACE FUNCTION cronce.prune(before timestamp with time zone, most integer)
 RETURNS integer
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  gone integer;
BEGIN
  WITH kept AS (
    SELECT max(r.id::text)::uuid AS id FROM cronce.run r
      WHERE r.status IN ('succeeded', 'failed', 'timed_out', 'lost') GROUP BY r.job, r.status = 'succeeded')
  DELETE FROM cronce.run WHERE id IN (
    SELECT r.id FROM cronce.run r
    WHERE r.finished_at < before AND r.id NOT IN (SELECT k.id FROM kept k)
      AND NOT EXISTS (SELECT FROM cronce.lock l WHERE l.run_id = r.id)
    ORDER BY r.finished_at LIMIT most);
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $function$


CREATE OR REPLACE FUNCTION cronce.record(r cronce.run)
 RETURNS jsonb
 LANGUAGE sql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN jsonb_build_object('id', (r).id, 'job', (r).job, 'slot', (r).slot, 'scheduledFor', (r).scheduled_for, 'slotGuessed', (r).slot_guessed, 'trigger', (r).trigger, 'deliveryId', (r).delivery_id, 'requestedBy', (r).requested_by, 'status', (r).status, 'skipReason', (r).skip_reason, 'blockedBy', (r).blocked_by, 'lockName', (r).lock_name, 'lockKey', ((r).lock_key)::text, 'fence', ((r).fence)::text, 'attempt', (r).attempt, 'maxAttempts', (r).max_attempts, 'final', (r).final, 'leaseMs', (r).lease_ms, 'params', (r).params, 'output', (r).output, 'error', (r).error, 'receivedAt', (r).received_at, 'startedAt', (r).started_at, 'finishedAt', (r).finished_at, 'cancelRequestedAt', (r).cancel_requested_at, 'cancelRequestedBy', (r).cancel_requested_by, 'publishedAt', (r).published_at)


CREATE OR REPLACE FUNCTION cronce.refusal(want jsonb, policy jsonb, by_hand boolean, at timestamp with time zone, self uuid)
 RETURNS TABLE(reason text, blocker uuid)
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION cronce.request_cancel(self uuid, by text)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION cronce.request_replace(job text, slot text, scheduled_for timestamp with time zone, keys bigint[])
 RETURNS uuid
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION cronce.require_schema(code_version integer)
 RETURNS void
 LANGUAGE plpgsql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION cronce.rest_after_restart(key bigint)
 RETURNS integer
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN COALESCE((SELECT (ceil(GREATEST((0)::numeric, (EXTRACT(epoch FROM ((s.started_at + make_interval(secs => (((r.lease_ms)::numeric / 1000.0))::double precision)) - clock_timestamp())) * (1000)::numeric))))::integer AS ceil FROM (cronce.lock l JOIN cronce.run r ON ((r.id = l.run_id))), cronce.server_started_at() s(started_at) WHERE ((l.key = rest_after_restart.key) AND (r.status = ANY (ARRAY['running'::text, 'lost'::text, 'cancelled'::text])) AND (r.claimed_at < s.started_at))), 0)


CREATE OR REPLACE FUNCTION cronce.resume_job(name text, by text, at timestamp with time zone)
 RETURNS cronce.job
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  made cronce.job;
BEGIN
  UPDATE cronce.pause p SET resumed_at = greatest(p.paused_at, coalesce(at, clock_timestamp())), resumed_by = by
    WHERE p.job = resume_job.name AND p.resumed_at IS NULL;
  UPDATE cronce.job j SET paused_at = NULL, paused_by = NULL, pause_reason = NULL WHERE j.name = resume_job.name;
  SELECT * INTO made FROM cronce.job j WHERE j.name = resume_job.name;
  RETURN made;
END $function$


CREATE OR REPLACE FUNCTION cronce.server_started_at()
 RETURNS timestamp with time zone
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN GREATEST(pg_postmaster_start_time(), (SELECT max(pg_stat_activity.backend_start) AS max FROM pg_stat_activity WHERE (pg_stat_activity.backend_type = 'checkpointer'::text)))


CREATE OR REPLACE FUNCTION cronce.settle(p jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION cronce.settle_dead(ids uuid[], fences bigint[], at timestamp with time zone, published boolean, why text)
 RETURNS SETOF cronce.run
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
BEGIN ATOMIC
 UPDATE cronce.run SET status =
         CASE
             WHEN (run.cancel_requested_at IS NULL) THEN 'lost'::text
             ELSE 'cancelled'::text
         END, final = ((run.cancel_requested_at IS NOT NULL) OR (run.after_lost = 'hold'::text) OR (run.attempt >= run.max_attempts)), finished_at = GREATEST(settle_dead.at, run.started_at), published_at =
         CASE
             WHEN settle_dead.published THEN clock_timestamp()
             ELSE NULL::timestamp with time zone
         END, error = jsonb_build_object('name', 'HolderGone', 'message', settle_dead.why)
   WHERE (((run.id, run.fence) IN ( SELECT unnest.unnest,
             unnest.unnest_1 AS unnest
            FROM UNNEST(settle_dead.ids, settle_dead.fences) unnest(unnest, unnest_1))) AND (run.status = 'running'::text))
   RETURNING run.id,
     run.job,
     run.slot,
     run.scheduled_for,
     run.slot_guessed,
     run.trigger,
     run.delivery_id,
     run.requested_by,
     run.status,
     run.skip_reason,
     run.blocked_by,
     run.lock_name,
     run.lock_key,
     run.guard_key,
     run.fence,
     run.backend_pid,
     run.attempt,
     run.max_attempts,
     run.after_lost,
     run.final,
     run.lease_ms,
     run.params,
     run.output,
     run.error,
     run.received_at,
     run.claimed_at,
     run.started_at,
     run.finished_at,
     run.cancel_requested_at,
     run.cancel_requested_by,
     run.published_at,
     run.published_to,
     run.publish_attempts,
     run.publish_after;
END


CREATE OR REPLACE FUNCTION cronce.settle_orphans(gap_ms integer, most integer, at timestamp with time zone, published boolean)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  ids    uuid[];
  fences bigint[];
BEGIN
  SELECT array_agg(o.id), array_agg(o.fence) INTO ids, fences FROM cronce.orphans(gap_ms, most) o;
  RETURN (SELECT coalesce(jsonb_agg(cronce.record(s)), '[]') FROM cronce.settle_dead(
    ids, fences, coalesce(at, clock_timestamp()), published, 'its backend no longer holds its lock') s);
END $function$


CREATE OR REPLACE FUNCTION cronce.stands(self uuid)
 RETURNS boolean
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN (EXISTS (SELECT FROM (cronce.run r JOIN cronce.lock l ON ((l.key = r.lock_key))) WHERE ((r.id = stands.self) AND (r.status = 'running'::text) AND (l.fence = r.fence) AND (l.run_id = r.id))))


CREATE OR REPLACE FUNCTION cronce.take_one(keys bigint[], guard bigint, self uuid, gap_ms integer)
 RETURNS bigint
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION cronce.take_unpublished(own uuid, most integer)
 RETURNS jsonb
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN (SELECT COALESCE(jsonb_agg(jsonb_build_object('run', cronce.record(ROW(due.id, due.job, due.slot, due.scheduled_for, due.slot_guessed, due.trigger, due.delivery_id, due.requested_by, due.status, due.skip_reason, due.blocked_by, due.lock_name, due.lock_key, due.guard_key, due.fence, due.backend_pid, due.attempt, due.max_attempts, due.after_lost, due.final, due.lease_ms, due.params, due.output, due.error, due.received_at, due.claimed_at, due.started_at, due.finished_at, due.cancel_requested_at, due.cancel_requested_by, due.published_at, due.published_to, due.publish_attempts, due.publish_after)), 'sentTo', due.published_to)), '[]'::jsonb) AS "coalesce" FROM (SELECT r.id, r.job, r.slot, r.scheduled_for, r.slot_guessed, r.trigger, r.delivery_id, r.requested_by, r.status, r.skip_reason, r.blocked_by, r.lock_name, r.lock_key, r.guard_key, r.fence, r.backend_pid, r.attempt, r.max_attempts, r.after_lost, r.final, r.lease_ms, r.params, r.output, r.error, r.received_at, r.claimed_at, r.started_at, r.finished_at, r.cancel_requested_at, r.cancel_requested_by, r.published_at, r.published_to, r.publish_attempts, r.publish_after FROM cronce.run r WHERE ((r.published_at IS NULL) AND (r.finished_at IS NOT NULL) AND ((r.id = take_unpublished.own) OR (r.publish_after <= clock_timestamp()))) ORDER BY (r.id = take_unpublished.own) DESC NULLS LAST, r.publish_after LIMIT take_unpublished.most FOR UPDATE OF r SKIP LOCKED) due)


CREATE OR REPLACE FUNCTION cronce.wait_for_one(keys bigint[], guard bigint, self uuid, gap_ms integer, wait_ms integer)
 RETURNS bigint
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
END $function$


CREATE OR REPLACE FUNCTION cronce.watch(pid integer, key bigint, self uuid)
 RETURNS jsonb
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
RETURN jsonb_build_object('atWork', (COALESCE((SELECT (a.state = 'active'::text) FROM pg_stat_get_activity(watch.pid) a(datid, pid, usesysid, application_name, state, query, wait_event_type, wait_event, xact_start, query_start, backend_start, state_change, client_addr, client_hostname, client_port, backend_xid, backend_xmin, backend_type, ssl, sslversion, sslcipher, sslbits, ssl_client_dn, ssl_client_serial, ssl_issuer_dn, gss_auth, gss_princ, gss_enc, gss_delegation, leader_pid, query_id)), false) AND cronce.holds(pid, key)), 'cancelBy', (SELECT r.cancel_requested_by FROM cronce.run r WHERE (r.id = watch.self)))

