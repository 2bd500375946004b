
TABLE cronce.example_migration
  version integer NOT NULL
  name text NOT NULL
  breaking boolean NOT NULL DEFAULT true
  applied_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()

TABLE cronce.idempotency_key
  deployment text NOT NULL
  key text NOT NULL
  job text NOT NULL
  fingerprint text NOT NULL
  scheduled_for timestamp with time zone NOT NULL
  first_used_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
  taken_at timestamp with time zone
  handed_at timestamp with time zone

TABLE cronce.job
  name text NOT NULL
  first_seen_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
  paused_at timestamp with time zone
  paused_by text
  pause_reason text
  deployment text NOT NULL DEFAULT 'default'::text
  owes boolean NOT NULL DEFAULT false

TABLE cronce.laid
  one boolean NOT NULL DEFAULT true
  hash text NOT NULL
  at timestamp with time zone NOT NULL DEFAULT clock_timestamp()

TABLE cronce.lock
  key bigint NOT NULL
  name text NOT NULL
  fence bigint NOT NULL
  run_id uuid NOT NULL
  of_slot boolean NOT NULL DEFAULT false

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
  deployment text NOT NULL DEFAULT 'default'::text

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
  deployment text NOT NULL DEFAULT 'default'::text
  lock_delay_ms integer
  delayed_ms integer
  delay_until timestamp with time zone
  blocked_by_deployment text
  asked_at timestamp with time zone
  paid boolean NOT NULL DEFAULT false
  publish_error jsonb
  request_reason text

TABLE cronce.schedule
  job text NOT NULL
  expression text NOT NULL
  time_zone text NOT NULL
  known_since timestamp with time zone NOT NULL
  accounted_until timestamp with time zone NOT NULL
  deployment text NOT NULL DEFAULT 'default'::text
  deployed_at timestamp with time zone NOT NULL
  starts_at timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone
  ends_at timestamp with time zone NOT NULL DEFAULT 'infinity'::timestamp with time zone

TABLE cronce.timeline
  id integer NOT NULL
  first_seen_at timestamp with time zone NOT NULL
CONSTRAINT example_migration.example_migration_pkey PRIMARY KEY (version)
CONSTRAINT idempotency_key.idempotency_key_pkey PRIMARY KEY (deployment, key)
CONSTRAINT job.job_pause_is_whole CHECK (((paused_at IS NULL) = (paused_by IS NULL)))
CONSTRAINT job.job_pkey PRIMARY KEY (deployment, name)
CONSTRAINT laid.laid_one_check CHECK (one)
CONSTRAINT laid.laid_pkey PRIMARY KEY (one)
CONSTRAINT lock.lock_fence_counts_from_one CHECK ((fence >= 1))
CONSTRAINT lock.lock_pkey PRIMARY KEY (key)
CONSTRAINT migration.migration_pkey PRIMARY KEY (version)
CONSTRAINT pause.pause_ends_after_it_began CHECK ((resumed_at >= paused_at))
CONSTRAINT pause.pause_ends_whole CHECK (((resumed_at IS NULL) = (resumed_by IS NULL)))
CONSTRAINT pause.pause_pkey PRIMARY KEY (deployment, job, paused_at)
CONSTRAINT run.run_after_lost_known CHECK ((after_lost = ANY (ARRAY['rerun'::text, 'hold'::text])))
CONSTRAINT run.run_delays_once_over CHECK (((delay_until IS NULL) OR (status <> 'running'::text)))
CONSTRAINT run.run_over_has_an_end CHECK (((status = 'running'::text) = (finished_at IS NULL)))
CONSTRAINT run.run_paid_what_was_owed CHECK (((NOT paid) OR (final IS NOT TRUE)))
CONSTRAINT run.run_pkey PRIMARY KEY (id)
CONSTRAINT run.run_published_once_over CHECK (((published_at IS NULL) OR (finished_at IS NOT NULL)))
CONSTRAINT run.run_skip_reason_known CHECK ((skip_reason = ANY (ARRAY['held'::text, 'duplicate'::text, 'paused'::text, 'too_late'::text, 'on_hold'::text, 'off_schedule'::text])))
CONSTRAINT run.run_skipped_with_a_reason CHECK (((status = 'skipped'::text) = (skip_reason IS NOT NULL)))
CONSTRAINT run.run_started_under_a_fence CHECK ((((status = ANY (ARRAY['skipped'::text, 'missed'::text])) = (fence IS NULL)) AND ((fence IS NULL) = (attempt IS NULL))))
CONSTRAINT run.run_status_known CHECK ((status = ANY (ARRAY['running'::text, 'succeeded'::text, 'failed'::text, 'timed_out'::text, 'lost'::text, 'cancelled'::text, 'skipped'::text, 'missed'::text])))
CONSTRAINT schedule.schedule_accounted_since_known CHECK ((accounted_until >= known_since))
CONSTRAINT schedule.schedule_pkey PRIMARY KEY (deployment, job, expression, time_zone, starts_at, ends_at)
CONSTRAINT timeline.timeline_pkey PRIMARY KEY (id)
CREATE UNIQUE INDEX example_migration_pkey ON cronce.example_migration USING btree (version)
CREATE INDEX idempotency_key_by_age ON cronce.idempotency_key USING btree (deployment, first_used_at)
CREATE UNIQUE INDEX idempotency_key_pkey ON cronce.idempotency_key USING btree (deployment, key)
CREATE UNIQUE INDEX job_pkey ON cronce.job USING btree (deployment, name)
CREATE UNIQUE INDEX laid_pkey ON cronce.laid USING btree (one)
CREATE INDEX lock_of_slot ON cronce.lock USING btree (run_id) WHERE of_slot
CREATE UNIQUE INDEX lock_pkey ON cronce.lock USING btree (key)
CREATE UNIQUE INDEX migration_pkey ON cronce.migration USING btree (version)
CREATE UNIQUE INDEX pause_one_open ON cronce.pause USING btree (deployment, job) WHERE (resumed_at IS NULL)
CREATE UNIQUE INDEX pause_pkey ON cronce.pause USING btree (deployment, job, paused_at)
CREATE INDEX run_by_due_time ON cronce.run USING btree (deployment, job, scheduled_for)
CREATE INDEX run_by_outcome ON cronce.run USING btree (deployment, job, COALESCE(skip_reason, status), id DESC NULLS LAST)
CREATE INDEX run_by_slot ON cronce.run USING btree (deployment, slot, job)
CREATE INDEX run_guessed ON cronce.run USING btree (deployment, delivery_id) WHERE slot_guessed
CREATE INDEX run_old ON cronce.run USING btree (deployment, finished_at) WHERE (finished_at IS NOT NULL)
CREATE UNIQUE INDEX run_one_success_per_slot ON cronce.run USING btree (deployment, job, slot) WHERE (status = 'succeeded'::text)
CREATE INDEX run_owed ON cronce.run USING btree (deployment, job, scheduled_for) WHERE ((final = false) AND (NOT paid))
CREATE UNIQUE INDEX run_pkey ON cronce.run USING btree (id)
CREATE INDEX run_standing_by_guard ON cronce.run USING btree (guard_key) WHERE ((status = 'running'::text) OR (delay_until IS NOT NULL))
CREATE INDEX run_standing_by_lock ON cronce.run USING btree (lock_key) WHERE ((status = 'running'::text) OR (delay_until IS NOT NULL))
CREATE INDEX run_unpublished ON cronce.run USING btree (deployment, publish_after) WHERE ((published_at IS NULL) AND (finished_at IS NOT NULL))
CREATE UNIQUE INDEX schedule_pkey ON cronce.schedule USING btree (deployment, job, expression, time_zone, starts_at, ends_at)
CREATE UNIQUE INDEX timeline_pkey ON cronce.timeline USING btree (id)

CREATE OR REPLACE FUNCTION cronce.account(p jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  own_deployment text := coalesce(p ->> 'deployment', 'default');
  own_job text := p ->> 'job';
  at   timestamptz := coalesce((p ->> 'now')::timestamptz, clock_timestamp());
  made uuid[];
BEGIN
  PERFORM cronce.demand_durability();
  PERFORM FROM cronce.job j WHERE j.deployment = own_deployment AND j.name = own_job FOR NO KEY UPDATE;
  WITH slots AS (
    SELECT g.id, g.slot, g."scheduledFor" AS due, EXISTS (
        SELECT FROM cronce.pause z WHERE z.deployment = own_deployment AND z.job = own_job
          AND g."scheduledFor" >= z.paused_at
          AND (z.resumed_at IS NULL OR g."scheduledFor" < z.resumed_at)) AS paused
    FROM jsonb_to_recordset(p -> 'slots') g (id uuid, slot text, "scheduledFor" timestamptz)
    WHERE NOT EXISTS ( -- one may have come since the sweep looked
      SELECT FROM cronce.run r WHERE r.deployment = own_deployment AND r.job = own_job AND r.slot = g.slot
        AND r.skip_reason IS DISTINCT FROM 'off_schedule')),
  inserted AS (
    INSERT INTO cronce.run (id, deployment, job, slot, scheduled_for, trigger, status, skip_reason, lock_name,
        received_at, finished_at)
      SELECT s.id, own_deployment, own_job, s.slot, s.due, 'sweep',
        CASE WHEN s.paused THEN 'skipped' ELSE 'missed' END, CASE WHEN s.paused THEN 'paused' END, p ->> 'lockName', at, at
      FROM slots s
      RETURNING id)
  SELECT coalesce(array_agg(x.id), '{}') INTO made FROM inserted x;
  UPDATE cronce.schedule s SET accounted_until = greatest(s.accounted_until, g.until)
    FROM jsonb_to_recordset(p -> 'schedules')
      g (expression text, "timeZone" text, start timestamptz, "end" timestamptz, until timestamptz)
    WHERE s.deployment = own_deployment AND s.job = own_job AND s.expression = g.expression AND s.time_zone = g."timeZone"
      AND s.starts_at = coalesce(g.start, '-infinity') AND s.ends_at = coalesce(g."end", 'infinity');
  PERFORM cronce.grant_catch_up(p, made);
  RETURN (SELECT coalesce(jsonb_agg(cronce.record(r) ORDER BY r.scheduled_for), '[]') FROM cronce.run r WHERE r.id = ANY (made));
END $function$


CREATE OR REPLACE FUNCTION cronce.ask_to_give_way(deployment text, job text, slot text, due timestamp with time zone, keys bigint[])
 RETURNS uuid
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  holder uuid;
BEGIN
  SELECT r.id INTO holder FROM cronce.run r
    WHERE r.status = 'running' AND r.lock_key = ANY (keys) AND r.deployment = ask_to_give_way.deployment
      AND r.job = ask_to_give_way.job AND r.slot <> ask_to_give_way.slot AND r.scheduled_for <= due
    ORDER BY r.scheduled_for LIMIT 1;
  PERFORM cronce.request_cancel(holder, 'the run of ' || ask_to_give_way.slot) WHERE holder IS NOT NULL;
  RETURN holder;
END $function$


CREATE OR REPLACE FUNCTION cronce.beat(self uuid)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  heard jsonb;
BEGIN
  heard := jsonb_build_object('stands', cronce.stands(beat.self),
    'status', (SELECT r.status FROM cronce.run r WHERE r.id = beat.self),
    'cancelBy', (SELECT r.cancel_requested_by FROM cronce.run r WHERE r.id = beat.self));
  RAISE EXCEPTION USING ERRCODE = 'CR005';
EXCEPTION
  WHEN SQLSTATE 'CR005' THEN RETURN heard;
  WHEN OTHERS THEN RETURN NULL;
END $function$


CREATE OR REPLACE FUNCTION cronce.begin_delay(r cronce.run)
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF r.delay_until IS DISTINCT FROM 'infinity' THEN
    RETURN;
  END IF;
  FOR i IN 1 .. 50 LOOP
    IF NOT cronce.holds(r.backend_pid, r.lock_key) THEN
      UPDATE cronce.run u SET delay_until = clock_timestamp() + make_interval(secs => r.lock_delay_ms / 1000.0)
        WHERE u.id = r.id;
      RETURN;
    END IF;
    PERFORM pg_sleep(0.01);
  END LOOP;
END $function$


CREATE OR REPLACE FUNCTION cronce.begin_fenced(self uuid, lease_ms integer)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  PERFORM cronce.keep_session(lease_ms);
  PERFORM cronce.demand_durability();
  PERFORM pg_advisory_xact_lock_shared(cronce.fenced_key(self));
  RETURN cronce.look(self);
END $function$


CREATE OR REPLACE FUNCTION cronce.came_by_itself(r cronce.run)
 RETURNS boolean
 LANGUAGE sql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT r.trigger NOT IN ('sweep', 'manual') AND r.slot NOT LIKE 'refused:%'
    AND r.skip_reason IS DISTINCT FROM 'off_schedule'
$function$


CREATE OR REPLACE FUNCTION cronce.claim(p jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  want      jsonb := p -> 'run';
  policy    jsonb := p -> 'policy';
  self      uuid := (want ->> 'id')::uuid;
  own_deployment text := p ->> 'deployment';
  own_job   text := want ->> 'job';
  own_slot  text := want ->> 'slot';
  keys      bigint[] := ARRAY(SELECT k::bigint FROM jsonb_array_elements_text(p #> '{lock,keys}') k);
  guard     bigint := (p #>> '{lock,guard}')::bigint;
  gap_ms    integer := (p ->> 'gapMs')::integer;
  since     timestamptz := clock_timestamp();
  wait_until timestamptz := since + make_interval(secs => coalesce((p #>> '{lock,waitMs}')::numeric, 0) / 1000);
  patient_until timestamptz := wait_until + make_interval(secs => coalesce((p #>> '{lock,patienceMs}')::numeric, 0) / 1000);
  at        timestamptz := coalesce((p ->> 'now')::timestamptz, since);
  again     boolean := coalesce((p ->> 'again')::boolean, false);
  now_at    integer := cronce.timeline();
  new_since timestamptz;
  least_fence bigint;
  key       bigint;
  reason    text;
  blocker   uuid;
  in_way    cronce.run;
  dead      uuid[];
  dead_fences bigint[];
  delays    boolean;
  settled   cronce.run[] := '{}';
  rest_ms   integer := 0;
  left_ms   numeric;
  need_ms   numeric;
  catching_up uuid;
  owed      boolean := false;
  owes      boolean;
  paused    boolean;
  is_known  boolean;
  is_first  boolean;
  made      cronce.run;
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION USING ERRCODE = 'CR003', MESSAGE = 'this server is a standby',
      HINT = 'point the coordinator at the primary: a standby grants locks that the primary holds';
  END IF;
  PERFORM cronce.require_schema((p ->> 'schema')::integer);
  PERFORM cronce.demand_durability();

  LOOP
    key := cronce.take_place(keys, guard, self, gap_ms);
    EXIT WHEN key IS NOT NULL;
    IF clock_timestamp() >= wait_until THEN
      -- Held, but by no run: another delivery is in its own T0 and may be about to skip. It would be wrong to give up a
      -- due slot for that; in a moment the holder shows, or the lock is free.
      in_way := cronce.holder_of(keys, guard, self, gap_ms);
      EXIT WHEN in_way.id IS NOT NULL OR clock_timestamp() >= patient_until;
    END IF;
    PERFORM pg_sleep(0.005 + random() * CASE WHEN clock_timestamp() > since + interval '1 s' THEN 0.03 ELSE 0.01 END);
  END LOOP;
  at := coalesce((p ->> 'now')::timestamptz, clock_timestamp());

  IF again THEN
    SELECT r.* INTO made FROM cronce.run r WHERE r.id = self;
    again := FOUND; -- a T0 that timed out has left none
    IF made.status <> 'running' THEN -- someone settled it meanwhile (a cancel): its outcome stands, its work never began
      UPDATE cronce.run r SET delay_until = NULL WHERE r.id = self AND r.delay_until IS NOT NULL;
      RETURN jsonb_build_object('run', cronce.record(made), 'restMs', 0, 'settled', '[]'::jsonb);
    END IF;
  ELSIF (want ->> 'slotGuessed')::boolean AND want ->> 'deliveryId' IS NOT NULL THEN
    SELECT r.* INTO made FROM cronce.run r
      WHERE r.deployment = own_deployment AND r.delivery_id = want ->> 'deliveryId' AND r.slot_guessed AND r.job = own_job
      ORDER BY r.id LIMIT 1;
    IF made.slot <> own_slot THEN
      RETURN jsonb_build_object('slot', made.slot, 'scheduledFor', made.scheduled_for);
    END IF;
  END IF;

  SELECT j.owes, j.paused_at IS NOT NULL INTO owes, paused FROM cronce.job j
    WHERE j.deployment = own_deployment AND j.name = own_job;
  is_known := FOUND;

  IF key IS NULL THEN
    SELECT d.reason, d.blocker INTO reason, blocker FROM cronce.refusal(p, at, self) d;
    IF reason IS NULL AND (policy ->> 'replace')::boolean THEN
      blocker := cronce.ask_to_give_way(own_deployment, own_job, own_slot, (want ->> 'scheduledFor')::timestamptz, keys);
      IF blocker IS NOT NULL THEN
        RETURN jsonb_build_object('replace', blocker);
      END IF;
    END IF;
    catching_up := cronce.held_by_catch_up(p, keys, in_way);
    owed := reason IS NULL AND catching_up IS NOT NULL;
    IF reason IS NULL OR (reason <> 'duplicate' AND catching_up IS NULL) THEN
      reason := 'held';
      blocker := coalesce(catching_up, in_way.id);
    END IF;
  ELSE
    SELECT array_agg(r.id ORDER BY r.id) FILTER (WHERE r.status = 'running'),
        array_agg(r.fence ORDER BY r.id) FILTER (WHERE r.status = 'running'), count(*) > 0
      INTO dead, dead_fences, delays FROM cronce.run r
      WHERE (r.lock_key = key OR r.guard_key = guard) AND (r.status = 'running' OR r.delay_until > clock_timestamp())
        AND r.id <> self;
    IF dead IS NOT NULL THEN
      SELECT coalesce(array_agg(s), '{}') INTO settled FROM cronce.settle_dead(
        dead, dead_fences, at, 'its lock was free while it stood as running') AS s;
      -- A fenced transaction of another role's session, perhaps: nobody can end it, its lease will.
      SELECT r.id INTO blocker FROM cronce.run r WHERE r.id = ANY (dead) AND r.status = 'running';
      owed := FOUND;
    END IF;
    is_first := NOT EXISTS (SELECT FROM cronce.run r
      WHERE r.deployment = own_deployment AND r.job = own_job AND r.slot = own_slot AND r.id <> self);
    IF owed THEN
      reason := 'held';
    ELSIF is_first AND paused IS NOT TRUE AND NOT (want ->> 'offSchedule')::boolean
        AND (at < (want ->> 'scheduledFor')::timestamptz + make_interval(secs => least(
          (policy ->> 'retentionMs')::numeric, (policy ->> 'startDeadlineMs')::numeric) / 1000)) IS NOT FALSE THEN
      NULL; -- nothing that a refusal could go by
    ELSE
      SELECT d.reason, d.blocker INTO reason, blocker FROM cronce.refusal(p, at, self) d;
    END IF;
  END IF;

  IF reason IS NULL THEN
    SELECT ((now_at - min(t.id))::bigint << 32) + 1, max(t.first_seen_at) FILTER (WHERE t.id = now_at)
      INTO least_fence, new_since FROM cronce.timeline t;
    IF new_since IS NULL THEN
      INSERT INTO cronce.timeline (id, first_seen_at) VALUES (now_at, clock_timestamp()) ON CONFLICT DO NOTHING;
      new_since := clock_timestamp();
    END IF;
    IF delays THEN
      SELECT d.ms, d.blocker INTO rest_ms, blocker FROM cronce.delay_of(key, guard, self) d;
      rest_ms := coalesce(rest_ms, 0);
    END IF;
    IF new_since > clock_timestamp() - interval '1 day' THEN -- what a lossy failover forgot may still be at work
      rest_ms := greatest(rest_ms, (p ->> 'lockDelayMs')::integer
                   - floor(extract(epoch FROM clock_timestamp() - new_since) * 1000)::integer);
    END IF;
    -- A delayed run still has the whole of its time, where its invocation ever had that.
    left_ms := (p ->> 'timeLeftMs')::numeric - extract(epoch FROM clock_timestamp() - since) * 1000;
    need_ms := (p ->> 'timeoutMs')::numeric;
    IF rest_ms > 0 AND left_ms - rest_ms < (CASE WHEN left_ms >= need_ms THEN need_ms ELSE 1 END) THEN
      reason := 'held';
      owed := true;
      rest_ms := 0;
    END IF;
  END IF;

  IF NOT is_known THEN
    INSERT INTO cronce.job (deployment, name, first_seen_at) VALUES (own_deployment, own_job, at) ON CONFLICT DO NOTHING;
  END IF;
  IF reason IS NULL THEN
    made := cronce.start_run(p, at, key, rest_ms, CASE WHEN rest_ms > 0 THEN blocker END, least_fence, again,
      is_first);
  ELSE
    made := cronce.skip_run(p, at, key, reason, blocker, owed, again);
    IF owed AND owes IS NOT TRUE THEN -- a hint, not worth a wait
      UPDATE cronce.job j SET owes = true WHERE j.deployment = own_deployment AND j.name = (
        SELECT k.name FROM cronce.job k WHERE k.deployment = own_deployment AND k.name = own_job
        FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
  END IF;
  RETURN jsonb_build_object('run', cronce.record(made), 'restMs', rest_ms, 'owes', coalesce(owes, false),
    'settled', (SELECT coalesce(jsonb_agg(cronce.record(s)), '[]') FROM unnest(settled) s));
END $function$


CREATE OR REPLACE FUNCTION cronce.delay_of(key bigint, guard bigint, self uuid)
 RETURNS TABLE(ms integer, blocker uuid)
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  longest cronce.run;
BEGIN
  SELECT r.* INTO longest FROM cronce.run r
    WHERE (r.lock_key = delay_of.key OR r.guard_key = delay_of.guard) AND r.delay_until > clock_timestamp()
      AND r.id <> delay_of.self
    ORDER BY r.delay_until DESC LIMIT 1;
  IF longest.delay_until = 'infinity' THEN
    UPDATE cronce.run r SET delay_until = clock_timestamp() + make_interval(secs => r.lock_delay_ms / 1000.0)
      WHERE (r.lock_key = delay_of.key OR r.guard_key = delay_of.guard) AND r.delay_until = 'infinity';
    RETURN QUERY SELECT d.ms, d.blocker FROM cronce.delay_of(delay_of.key, delay_of.guard, delay_of.self) d;
  ELSIF longest.id IS NOT NULL THEN
    RETURN QUERY SELECT ceil(extract(epoch FROM longest.delay_until - clock_timestamp()) * 1000)::integer, longest.id;
  END IF;
END $function$


CREATE OR REPLACE FUNCTION cronce.delivered(job text, since timestamp with time zone, until timestamp with time zone, deployment text DEFAULT 'default'::text)
 RETURNS timestamp with time zone[]
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT ARRAY(SELECT DISTINCT r.scheduled_for FROM cronce.run r
    WHERE r.deployment = delivered.deployment AND r.job = delivered.job AND r.slot NOT LIKE 'manual:%'
      AND r.skip_reason IS DISTINCT FROM 'off_schedule'
      AND r.scheduled_for BETWEEN delivered.since AND delivered.until
    ORDER BY r.scheduled_for)
$function$


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


CREATE OR REPLACE FUNCTION cronce.demand_fence(self uuid)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF cronce.stands(self) THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'CR004', MESSAGE = 'the run no longer stands as running under the last fence';
END $function$


CREATE OR REPLACE FUNCTION cronce.drain(run uuid, limit_ms integer)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  own    bigint := cronce.fenced_key(run);
  since  timestamptz := clock_timestamp();
  forced boolean := false;
BEGIN
  LOOP
    IF pg_try_advisory_xact_lock(own) THEN
      RETURN true;
    END IF;
    IF clock_timestamp() > since + make_interval(secs => limit_ms / 1000.0) THEN
      RETURN false;
    END IF;
    IF NOT forced AND clock_timestamp() > since + interval '300 ms' THEN
      forced := true;
      BEGIN
        PERFORM pg_terminate_backend(h.pid) FROM cronce.held_keys() h
          WHERE h.key = own AND h.shared AND h.pid <> pg_backend_pid();
      EXCEPTION WHEN insufficient_privilege THEN
        NULL; -- another role's session
      END;
    END IF;
    PERFORM pg_sleep(0.01);
  END LOOP;
END $function$


CREATE OR REPLACE FUNCTION cronce.due_time(p jsonb)
 RETURNS timestamp with time zone
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  IF (p #>> '{run,scheduledForGuessed}')::boolean THEN
    RETURN coalesce((SELECT r.scheduled_for FROM cronce.run r WHERE r.deployment = p ->> 'deployment'
      AND r.job = p #>> '{run,job}' AND r.slot = p #>> '{run,slot}' ORDER BY r.id LIMIT 1), (p #>> '{run,scheduledFor}')::timestamptz);
  END IF;
  RETURN (p #>> '{run,scheduledFor}')::timestamptz;
END $function$


CREATE OR REPLACE FUNCTION cronce.end_holder(r cronce.run)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  RETURN r.backend_pid <> pg_backend_pid()
    AND EXISTS (SELECT FROM cronce.lock l WHERE l.key = r.lock_key AND l.fence = r.fence AND l.run_id = r.id)
    AND cronce.holds(r.backend_pid, r.lock_key)
    AND (r.guard_key IS NULL OR cronce.holds(r.backend_pid, r.guard_key))
    AND pg_terminate_backend(r.backend_pid);
EXCEPTION WHEN insufficient_privilege THEN
  RETURN false; -- another role's session: the lease will end it
END $function$


CREATE OR REPLACE FUNCTION cronce.enter(self uuid)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  mine  cronce.run;
  stood boolean;
BEGIN
  BEGIN
    SELECT r.* INTO mine FROM cronce.run r WHERE r.id = self;
    stood := cronce.stands(self);
    RAISE EXCEPTION USING ERRCODE = 'CR005';
  EXCEPTION WHEN SQLSTATE 'CR005' THEN
    NULL;
  END;
  IF stood THEN
    PERFORM cronce.keep_session(mine.lease_ms);
    PERFORM pg_advisory_xact_lock(mine.guard_key) WHERE mine.guard_key IS NOT NULL;
    PERFORM pg_advisory_xact_lock(mine.lock_key);
    BEGIN
      stood := cronce.stands(self);
      RAISE EXCEPTION USING ERRCODE = 'CR005';
    EXCEPTION WHEN SQLSTATE 'CR005' THEN
      NULL;
    END;
  END IF;
  RETURN jsonb_build_object('entered', coalesce(stood, false), 'pid', pg_backend_pid(),
    'lease', current_setting('idle_in_transaction_session_timeout'));
END $function$


CREATE OR REPLACE FUNCTION cronce.expired(before timestamp with time zone, most integer, deployment text, since timestamp with time zone)
 RETURNS TABLE(id uuid, finished_at timestamp with time zone)
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT r.id, r.finished_at FROM cronce.run r
  WHERE r.deployment = expired.deployment AND r.finished_at >= expired.since AND r.finished_at < expired.before
    AND (r.status NOT IN ('succeeded', 'failed', 'timed_out', 'lost') OR r.id < ANY (ARRAY(
      SELECT l.id FROM unnest(
        CASE r.status WHEN 'succeeded' THEN ARRAY['succeeded'] ELSE ARRAY['failed', 'timed_out', 'lost'] END) w (word)
      CROSS JOIN LATERAL (
        SELECT n.id FROM cronce.run n
        WHERE n.deployment = r.deployment AND n.job = r.job AND coalesce(n.skip_reason, n.status) = w.word
        ORDER BY n.id DESC NULLS LAST LIMIT 1) l)))
  ORDER BY r.finished_at LIMIT expired.most
$function$


CREATE OR REPLACE FUNCTION cronce.fenced_key(run uuid)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT hashtextextended(run::text, 0)
$function$


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
  IF NOT pg_try_advisory_xact_lock(hashtextextended(self::text, 0)) THEN -- cronce.fenced_key, without a call
    PERFORM cronce.drain(self, 2000);
  END IF;
  UPDATE cronce.run r SET
      status = CASE WHEN r.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE p ->> 'status' END,
      final = cronce.is_final(r, p ->> 'status', (p ->> 'final')::boolean),
      output = coalesce(p -> 'output', 'null'), error = nullif(p -> 'error', 'null'),
      finished_at = greatest(coalesce((p ->> 'now')::timestamptz, clock_timestamp()), r.started_at),
      delay_until = CASE WHEN NOT coalesce((p ->> 'own')::boolean, true) AND r.lock_delay_ms > 0
                         THEN 'infinity'::timestamptz END,
      publish_after = clock_timestamp() + interval '30 s'
    WHERE r.id = self AND cronce.stands(self) AND r.status = 'running'
    RETURNING r.* INTO made;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'CR004', MESSAGE = 'the run no longer stands as running under the last fence';
  END IF;
  IF made.status = 'cancelled' AND p ->> 'status' = 'succeeded' THEN
    RAISE EXCEPTION USING ERRCODE = 'CR006', MESSAGE = 'cancelled by ' || made.cancel_requested_by;
  END IF;
  RETURN cronce.record(made);
END $function$


CREATE OR REPLACE FUNCTION cronce.forget_schedule(job text, expression text, time_zone text, deployment text DEFAULT 'default'::text, starts_at timestamp with time zone DEFAULT NULL::timestamp with time zone, ends_at timestamp with time zone DEFAULT NULL::timestamp with time zone)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  DELETE FROM cronce.schedule s WHERE s.deployment = forget_schedule.deployment AND s.job = forget_schedule.job
    AND s.expression = forget_schedule.expression AND s.time_zone = forget_schedule.time_zone
    AND s.starts_at = coalesce(forget_schedule.starts_at, '-infinity') AND s.ends_at = coalesce(forget_schedule.ends_at, 'infinity');
  RETURN FOUND;
END $function$


CREATE OR REPLACE FUNCTION cronce.grant_catch_up(p jsonb, made uuid[])
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  own_deployment text := coalesce(p ->> 'deployment', 'default');
  own_job  text := p ->> 'job';
  policy   text := coalesce(p ->> 'catchUp', 'skip');
  whole    boolean := coalesce((p ->> 'whole')::boolean, true);
  uncertain uuid[] := ARRAY(SELECT (s ->> 'id')::uuid FROM jsonb_array_elements(p -> 'slots') s WHERE NOT (s ->> 'certain')::boolean);
  first_due timestamptz;
  came     timestamptz[]; -- the bounds of outages
BEGIN
  IF policy IN ('one', 'all') AND cardinality(made) > 0 THEN
    SELECT min(r.scheduled_for) INTO first_due FROM cronce.run r WHERE r.id = ANY (made);
    SELECT r.scheduled_for INTO first_due FROM cronce.run r
      WHERE r.deployment = own_deployment AND r.job = own_job AND r.scheduled_for < first_due AND cronce.came_by_itself(r)
      ORDER BY r.scheduled_for DESC LIMIT 1;
    came := ARRAY(
      SELECT '-infinity'::timestamptz UNION SELECT r.scheduled_for FROM cronce.run r
      WHERE r.deployment = own_deployment AND r.job = own_job AND r.scheduled_for >= coalesce(first_due, '-infinity')
        AND cronce.came_by_itself(r)
      ORDER BY 1);
    WITH granted AS (
      SELECT width_bucket(r.scheduled_for, came) AS outage, count(*) AS n, max(r.scheduled_for) AS last,
        bool_or(r.paid OR (r.asked_at IS NOT NULL AND r.asked_at <> 'infinity')) AS asked
      FROM cronce.run r
      WHERE r.deployment = own_deployment AND r.job = own_job AND r.status = 'missed' AND r.final = false
        AND r.scheduled_for >= coalesce(first_due, '-infinity')
      GROUP BY 1),
    eligible AS (
      SELECT r.id, r.scheduled_for, width_bucket(r.scheduled_for, came) AS outage
      FROM cronce.run r
      WHERE r.id = ANY (made) AND r.status = 'missed' AND r.id <> ALL (uncertain)
        AND r.scheduled_for >= coalesce((p ->> 'earliest')::timestamptz, '-infinity')),
    ranked AS (
      SELECT e.id, e.scheduled_for, g.last, coalesce(g.n, 0) AS before, coalesce(g.asked, false) AS asked,
        row_number() OVER (PARTITION BY e.outage ORDER BY e.scheduled_for) AS from_oldest,
        row_number() OVER (PARTITION BY e.outage ORDER BY e.scheduled_for DESC) AS from_latest
      FROM eligible e LEFT JOIN granted g USING (outage))
    UPDATE cronce.run r SET final = false, asked_at = CASE WHEN policy = 'one' AND NOT whole THEN 'infinity'::timestamptz END
      FROM ranked x WHERE x.id = r.id AND CASE policy
        WHEN 'all' THEN x.before + x.from_oldest <= (p ->> 'catchUpLimit')::integer
        ELSE x.from_latest = 1 AND NOT x.asked AND x.scheduled_for > coalesce(x.last, '-infinity') END;
    UPDATE cronce.run r SET final = NULL, asked_at = NULL
      WHERE policy = 'one' AND r.deployment = own_deployment AND r.job = own_job AND r.status = 'missed'
        AND r.final = false AND NOT r.paid AND (r.asked_at IS NULL OR r.asked_at = 'infinity')
        AND EXISTS (
          SELECT FROM cronce.run l WHERE l.id = ANY (made) AND l.final = false AND l.scheduled_for > r.scheduled_for
            AND width_bucket(l.scheduled_for, came) = width_bucket(r.scheduled_for, came));
  END IF;
  UPDATE cronce.run r SET asked_at = NULL
    WHERE whole AND r.deployment = own_deployment AND r.job = own_job AND r.final = false AND NOT r.paid
      AND r.asked_at = 'infinity';
  UPDATE cronce.job j SET owes = true
    WHERE j.deployment = own_deployment AND j.name = own_job AND NOT j.owes AND EXISTS (
      SELECT FROM cronce.run r
      WHERE r.deployment = own_deployment AND r.job = own_job AND r.final = false AND NOT r.paid);
END $function$


CREATE OR REPLACE FUNCTION cronce.held_by_catch_up(p jsonb, keys bigint[], in_way cronce.run)
 RETURNS uuid
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT r.id FROM cronce.run r
  WHERE r.status = 'running' AND r.lock_key = ANY (keys) AND r.trigger = 'sweep'
    AND p #>> '{run,trigger}' NOT IN ('manual', 'sweep')
    AND (in_way.deployment, in_way.job, in_way.slot)
        IS DISTINCT FROM (p ->> 'deployment', p #>> '{run,job}', p #>> '{run,slot}')
  ORDER BY r.id = in_way.id DESC, r.claimed_at LIMIT 1
$function$


CREATE OR REPLACE FUNCTION cronce.held_keys()
 RETURNS TABLE(pid integer, key bigint, shared boolean)
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT l.pid, (l.classid::bigint << 32) | l.objid::bigint, l.mode = 'ShareLock'
  FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$function$


CREATE OR REPLACE FUNCTION cronce.holder_of(keys bigint[], guard bigint, self uuid, gap_ms integer)
 RETURNS cronce.run
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  alive cronce.run[];
  found cronce.run;
BEGIN
  SELECT array_agg(r ORDER BY r.guard_key = guard DESC NULLS LAST, r.claimed_at) INTO alive FROM cronce.run r
    WHERE r.status = 'running' AND r.id <> self AND (r.lock_key = ANY (keys) OR r.guard_key = guard)
      AND (cronce.holds(r.backend_pid, r.lock_key)
           OR (r.claimed_at > clock_timestamp() - make_interval(secs => gap_ms / 1000.0)
               AND cronce.is_backend(r.backend_pid)));
  IF (alive[1]).guard_key = guard
     OR NOT EXISTS (SELECT FROM unnest(keys) k WHERE k NOT IN (SELECT a.lock_key FROM unnest(alive) a)) THEN
    found := alive[1];
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'CR005'; -- no lock of ours on our tables while the caller waits
EXCEPTION WHEN SQLSTATE 'CR005' THEN
  RETURN found;
END $function$


CREATE OR REPLACE FUNCTION cronce.holds(pid integer, key bigint)
 RETURNS boolean
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT EXISTS (SELECT FROM cronce.held_keys() h WHERE h.pid = holds.pid AND h.key = holds.key)
$function$


CREATE OR REPLACE FUNCTION cronce.is_backend(pid integer)
 RETURNS boolean
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT pg_stat_clear_snapshot();
  SELECT EXISTS (SELECT FROM pg_stat_get_activity(is_backend.pid)) AND is_backend.pid IS NOT NULL -- asked for none, it answers all
$function$


CREATE OR REPLACE FUNCTION cronce.is_final(r cronce.run, outcome text, permanent boolean)
 RETURNS boolean
 LANGUAGE sql
 IMMUTABLE
AS $function$
  SELECT outcome IN ('succeeded', 'cancelled')
      OR r.cancel_requested_at IS NOT NULL
      OR coalesce(permanent, false)
      OR (outcome = 'lost' AND r.after_lost = 'hold')
      OR r.attempt >= r.max_attempts
$function$


CREATE OR REPLACE FUNCTION cronce.is_starting(key bigint, guard bigint, self uuid, gap_ms integer)
 RETURNS boolean
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT EXISTS (SELECT FROM cronce.run r
    WHERE r.status = 'running' AND (r.lock_key = is_starting.key OR r.guard_key = is_starting.guard)
      AND r.id <> is_starting.self
      AND r.claimed_at > clock_timestamp() - make_interval(secs => gap_ms / 1000.0)
      AND cronce.is_backend(r.backend_pid))
$function$


CREATE OR REPLACE FUNCTION cronce.keep_session(lease_ms integer, can_look boolean DEFAULT true)
 RETURNS void
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  seconds integer := greatest(1, ceil(lease_ms / 1000.0));
BEGIN
  PERFORM set_config('tcp_keepalives_idle', seconds::text, true),
    set_config('tcp_keepalives_interval', greatest(1, seconds / 3)::text, true),
    set_config('tcp_keepalives_count', '3', true),
    set_config('tcp_user_timeout', (seconds * 1000)::text, true),
    set_config('client_connection_check_interval', CASE WHEN can_look THEN '500ms' ELSE '0' END, true);
EXCEPTION WHEN OTHERS THEN
  IF can_look THEN -- a platform that can't; then the statement's end or its time limit frees the lock
    PERFORM cronce.keep_session(lease_ms, false);
  END IF;
END $function$


CREATE OR REPLACE FUNCTION cronce.know_schedules(given jsonb, at timestamp with time zone, deployment text DEFAULT 'default'::text)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  INSERT INTO cronce.schedule AS s (deployment, job, expression, time_zone, starts_at, ends_at, known_since,
      accounted_until, deployed_at)
    SELECT DISTINCT know_schedules.deployment, g.job, g.expression, g."timeZone", coalesce(g.start, '-infinity'),
      coalesce(g."end", 'infinity'), at, at, at
    FROM jsonb_to_recordset(given) g (job text, expression text, "timeZone" text, start timestamptz, "end" timestamptz)
    ON CONFLICT ON CONSTRAINT schedule_pkey DO UPDATE SET deployed_at = greatest(s.deployed_at, excluded.deployed_at);
  INSERT INTO cronce.job (deployment, name, first_seen_at)
    SELECT DISTINCT know_schedules.deployment, g.job, at FROM jsonb_to_recordset(given) g (job text) ON CONFLICT DO NOTHING;
  RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('job', s.job, 'expression', s.expression, 'timeZone', s.time_zone,
      'start', nullif(s.starts_at, '-infinity'), 'end', nullif(s.ends_at, 'infinity'),
      'knownSince', s.known_since, 'accountedUntil', s.accounted_until, 'deployedAt', s.deployed_at,
      'gone', NOT EXISTS (
        SELECT FROM jsonb_to_recordset(given) g (job text, expression text, "timeZone" text, start timestamptz, "end" timestamptz)
        WHERE g.job = s.job AND g.expression = s.expression AND g."timeZone" = s.time_zone
          AND coalesce(g.start, '-infinity') = s.starts_at AND coalesce(g."end", 'infinity') = s.ends_at))
      ORDER BY s.job, s.expression, s.time_zone, s.starts_at, s.ends_at), '[]')
    FROM cronce.schedule s WHERE s.deployment = know_schedules.deployment);
END $function$


CREATE OR REPLACE FUNCTION cronce.lock_key(namespace text, name text)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE STRICT
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT ('x' || encode(substr(sha256(convert_to(namespace || ':' || name, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
$function$


CREATE OR REPLACE FUNCTION cronce.look(self uuid)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  found boolean;
BEGIN
  found := cronce.stands(self);
  RAISE EXCEPTION USING ERRCODE = 'CR005';
EXCEPTION WHEN SQLSTATE 'CR005' THEN
  RETURN found;
END $function$


CREATE OR REPLACE FUNCTION cronce.mark_published(sent jsonb)
 RETURNS void
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  UPDATE cronce.run r SET
    published_to = ARRAY(SELECT jsonb_array_elements_text(s.one -> 'sentTo')),
    published_at = CASE WHEN (s.one ->> 'done')::boolean THEN clock_timestamp() END,
    publish_attempts = r.publish_attempts + 1,
    publish_error = nullif(s.one -> 'error', 'null'),
    publish_after = CASE WHEN (s.one ->> 'givenUp')::boolean THEN 'infinity'
      ELSE clock_timestamp() + least(interval '10 seconds' * 2 ^ least(r.publish_attempts, 10), interval '1 hour') END
  FROM jsonb_array_elements(sent) AS s (one)
  WHERE r.id = (s.one ->> 'id')::uuid
$function$


CREATE OR REPLACE FUNCTION cronce.mark_told(ids uuid[])
 RETURNS void
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  UPDATE cronce.run r SET published_to = '{log}', published_at = clock_timestamp()
  WHERE r.id = ANY (ids) AND r.published_at IS NULL AND r.finished_at IS NOT NULL
$function$


CREATE OR REPLACE FUNCTION cronce.next_attempt(own_deployment text, own_job text, own_slot text, self uuid)
 RETURNS integer
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT count(*)::integer + 1 FROM cronce.run r
  WHERE r.deployment = own_deployment AND r.job = own_job AND r.slot = own_slot
    AND r.attempt IS NOT NULL AND r.status <> 'running' AND r.id <> self
$function$


CREATE OR REPLACE FUNCTION cronce.next_fence(own_key bigint, own_name text, for_slot boolean, self uuid, least_fence bigint)
 RETURNS bigint
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  given bigint;
BEGIN
  INSERT INTO cronce.lock AS l (key, name, fence, run_id, of_slot)
    VALUES (own_key, own_name, greatest(1, least_fence), self, for_slot)
    ON CONFLICT ON CONSTRAINT lock_pkey DO UPDATE SET
      fence = greatest(l.fence + 1, least_fence), run_id = excluded.run_id, name = excluded.name,
      of_slot = excluded.of_slot
    RETURNING l.fence INTO given;
  RETURN given;
END $function$


CREATE OR REPLACE FUNCTION cronce.next_owed(deployment text, job text, patience_ms bigint, at timestamp with time zone DEFAULT NULL::timestamp with time zone, since timestamp with time zone DEFAULT NULL::timestamp with time zone, manual boolean DEFAULT false)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  chosen uuid;
  busy   boolean;
  more   boolean;
  made   cronce.run;
BEGIN
  PERFORM FROM cronce.job j
    WHERE j.deployment = next_owed.deployment AND j.name = next_owed.job AND j.paused_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  PERFORM cronce.pay(next_owed.deployment, next_owed.job);
  SELECT bool_or(o.on_its_way), (array_agg(o.id ORDER BY o.due, o.id) FILTER (WHERE o.ready
           AND (NOT next_owed.manual OR o.slot LIKE 'manual:%')))[1], count(DISTINCT o.slot) > 1
    INTO busy, chosen, more
    FROM cronce.owed(next_owed.deployment, next_owed.job, next_owed.patience_ms, next_owed.at, next_owed.since) o;
  IF busy THEN
    RETURN NULL;
  END IF;
  UPDATE cronce.job j SET owes = more
    WHERE j.deployment = next_owed.deployment AND j.name = next_owed.job AND j.owes <> more;
  UPDATE cronce.run r SET asked_at = coalesce(next_owed.at, clock_timestamp()) WHERE r.id = chosen RETURNING r.* INTO made;
  RETURN CASE WHEN made.id IS NOT NULL THEN cronce.record(made) END;
END $function$


CREATE OR REPLACE FUNCTION cronce.not_asked(debt uuid)
 RETURNS void
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  UPDATE cronce.run r SET asked_at = NULL WHERE r.id = debt
$function$


CREATE OR REPLACE FUNCTION cronce.orphans(gap_ms integer, most integer, deployment text DEFAULT 'default'::text)
 RETURNS TABLE(id uuid, fence bigint)
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
DECLARE
  stale cronce.run[];
BEGIN
  SELECT array_agg(r) INTO stale FROM (
    SELECT * FROM cronce.run c
    WHERE c.status = 'running' AND c.claimed_at < clock_timestamp() - make_interval(secs => gap_ms / 1000.0)
      AND c.deployment = orphans.deployment
    ORDER BY c.claimed_at LIMIT most) r;
  RETURN QUERY SELECT r.id, r.fence FROM unnest(stale) r
    WHERE NOT EXISTS (SELECT FROM cronce.held_keys() h WHERE h.pid = r.backend_pid AND h.key = r.lock_key);
END $function$


CREATE OR REPLACE FUNCTION cronce.owed(deployment text, job text, patience_ms bigint, at timestamp with time zone, since timestamp with time zone)
 RETURNS TABLE(id uuid, slot text, due timestamp with time zone, on_its_way boolean, ready boolean)
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT d.id, d.slot, d.scheduled_for,
    s.running OR s.expected OR (s.patient AND d.trigger = 'sweep'),
    NOT (s.running OR s.expected OR s.patient)
  FROM cronce.run d,
    LATERAL (SELECT coalesce(owed.at, clock_timestamp()) - make_interval(secs => owed.patience_ms / 1000.0) AS long_ago) t,
    LATERAL (SELECT
      EXISTS (SELECT FROM cronce.run l
              WHERE l.deployment = d.deployment AND l.job = d.job AND l.slot = d.slot AND l.status = 'running') AS running,
      coalesce(d.asked_at > t.long_ago, false) AND NOT EXISTS (
        SELECT FROM cronce.run l
        WHERE l.deployment = d.deployment AND l.job = d.job AND l.slot = d.slot AND l.trigger = 'sweep'
          AND l.received_at >= d.asked_at AND l.id <> d.id) AS expected,
      d.status IN ('failed', 'timed_out', 'lost') AND (d.finished_at >= t.long_ago OR EXISTS (
        SELECT FROM cronce.run l
        WHERE l.deployment = d.deployment AND l.job = d.job AND l.slot = d.slot AND l.id > d.id
          AND l.skip_reason = 'held' AND l.received_at > t.long_ago)) AS patient) s
  WHERE d.deployment = owed.deployment AND d.job = owed.job AND d.final = false AND NOT d.paid
    AND d.status IN ('missed', 'skipped', 'failed', 'timed_out', 'lost')
    AND d.asked_at IS DISTINCT FROM 'infinity' AND d.finished_at >= coalesce(owed.since, '-infinity')
$function$


CREATE OR REPLACE FUNCTION cronce.pause_job(name text, by text, reason text, at timestamp with time zone, deployment text DEFAULT 'default'::text)
 RETURNS cronce.job
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  made cronce.job;
BEGIN
  INSERT INTO cronce.job (deployment, name, first_seen_at)
    VALUES (pause_job.deployment, pause_job.name, coalesce(at, clock_timestamp())) ON CONFLICT DO NOTHING;
  UPDATE cronce.job j SET paused_at = coalesce(at, clock_timestamp()), paused_by = by, pause_reason = reason
    WHERE j.deployment = pause_job.deployment AND j.name = pause_job.name AND j.paused_at IS NULL RETURNING j.* INTO made;
  IF FOUND THEN
    INSERT INTO cronce.pause (deployment, job, paused_at, paused_by, reason)
      VALUES (made.deployment, made.name, made.paused_at, by, pause_job.reason);
  ELSE
    SELECT j.* INTO made FROM cronce.job j WHERE j.deployment = pause_job.deployment AND j.name = pause_job.name;
  END IF;
  RETURN made;
END $function$


CREATE OR REPLACE FUNCTION cronce.pay(deployment text, job text)
 RETURNS void
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  UPDATE cronce.run d SET paid = true
  WHERE d.deployment = pay.deployment AND d.job = pay.job AND d.final = false AND NOT d.paid
    AND EXISTS (
      SELECT FROM cronce.run l
      WHERE l.deployment = d.deployment AND l.job = d.job AND l.slot = d.slot AND l.id <> d.id
        AND (l.status = 'succeeded' OR l.final
             OR (l.id > d.id AND l.status <> 'missed'
                 AND (l.final = false OR l.skip_reason IN ('duplicate', 'too_late', 'on_hold', 'off_schedule')))))
$function$


CREATE OR REPLACE FUNCTION cronce.prune(before timestamp with time zone, most integer, deployment text DEFAULT 'default'::text, since timestamp with time zone DEFAULT '-infinity'::timestamp with time zone)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  found uuid[];
  gone  uuid[];
  until timestamptz;
BEGIN
  SELECT array_agg(e.id), max(e.finished_at) INTO found, until
    FROM cronce.expired(prune.before, most, prune.deployment, prune.since) e;
  SELECT array_agg(l.id) INTO gone FROM (
    SELECT r.id FROM cronce.run r WHERE r.id = ANY (found) FOR UPDATE SKIP LOCKED) l;
  DELETE FROM cronce.run r WHERE r.id = ANY (gone);
  DELETE FROM cronce.lock l WHERE l.of_slot AND l.run_id = ANY (gone);
  RETURN jsonb_build_object('pruned', coalesce(cardinality(gone), 0),
    'until', CASE WHEN cardinality(found) = most THEN until END);
END $function$


CREATE OR REPLACE FUNCTION cronce.record(r cronce.run)
 RETURNS jsonb
 LANGUAGE sql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT jsonb_build_object(
    'id', r.id, 'deployment', r.deployment, 'job', r.job, 'slot', r.slot, 'scheduledFor', r.scheduled_for,
    'slotGuessed', r.slot_guessed, 'trigger', r.trigger, 'deliveryId', r.delivery_id, 'requestedBy', r.requested_by,
    'requestReason', r.request_reason,
    'status', r.status, 'skipReason', r.skip_reason, 'blockedBy', r.blocked_by,
    'blockedByDeployment', r.blocked_by_deployment, 'lockName', r.lock_name, 'lockKey', r.lock_key::text,
    'fence', r.fence::text, 'attempt', r.attempt, 'maxAttempts', r.max_attempts, 'final', r.final,
    'leaseMs', r.lease_ms, 'lockDelayMs', r.lock_delay_ms, 'delayedMs', r.delayed_ms,
    'params', r.params, 'output', r.output, 'error', r.error,
    'receivedAt', r.received_at, 'startedAt', r.started_at, 'finishedAt', r.finished_at,
    'cancelRequestedAt', r.cancel_requested_at, 'cancelRequestedBy', r.cancel_requested_by,
    'publishedAt', r.published_at, 'publishError', r.publish_error)
$function$


CREATE OR REPLACE FUNCTION cronce.refusal(p jsonb, at timestamp with time zone, self uuid)
 RETURNS TABLE(reason text, blocker uuid)
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  own_deployment text := p ->> 'deployment';
  want    jsonb := p -> 'run';
  own_job  text := want ->> 'job';
  own_slot text := want ->> 'slot';
  policy   jsonb := p -> 'policy';
  over     record;
BEGIN
  -- Of the slot's runs that are over for good: a success, else one that was lost, else the last.
  SELECT r.id, r.status, r.after_lost INTO over FROM cronce.run r
    WHERE r.deployment = own_deployment AND r.job = own_job AND r.slot = own_slot AND r.id <> self
      AND (r.final OR r.status = 'succeeded')
    ORDER BY r.status = 'succeeded' DESC, r.status = 'lost' DESC, r.id DESC LIMIT 1;
  IF over.status = 'succeeded' THEN
    RETURN QUERY SELECT 'duplicate', over.id;
    RETURN;
  END IF;
  IF (want ->> 'offSchedule')::boolean AND NOT EXISTS (
      SELECT FROM cronce.run r WHERE r.deployment = own_deployment AND r.job = own_job AND r.slot = own_slot
        AND r.id <> self AND r.skip_reason IS DISTINCT FROM 'off_schedule') THEN
    RETURN QUERY SELECT 'off_schedule', NULL::uuid;
    RETURN;
  END IF;
  -- The success that would turn it away may be pruned; so for an operator too.
  IF (want ->> 'scheduledFor')::timestamptz + make_interval(secs => (policy ->> 'retentionMs')::numeric / 1000) < at THEN
    RETURN QUERY SELECT 'too_late', NULL::uuid;
    RETURN;
  END IF;
  IF (policy ->> 'byHand')::boolean THEN -- an operator may run a failed, held or missed slot again, paused or late
    RETURN;
  END IF;
  IF over.id IS NOT NULL THEN
    RETURN QUERY SELECT CASE WHEN over.status = 'lost' AND over.after_lost = 'hold' THEN 'on_hold' ELSE 'duplicate' END, over.id;
    RETURN;
  END IF;
  RETURN QUERY SELECT 'paused', NULL::uuid FROM cronce.job j
    WHERE j.deployment = own_deployment AND j.name = own_job AND j.paused_at IS NOT NULL;
  IF FOUND THEN
    RETURN;
  END IF;
  IF (want ->> 'scheduledFor')::timestamptz
     + make_interval(secs => (policy ->> 'startDeadlineMs')::numeric / 1000) < at THEN
    RETURN QUERY SELECT 'too_late', NULL::uuid;
  END IF;
END $function$


CREATE OR REPLACE FUNCTION cronce.refuse(p jsonb, error jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  want jsonb := p -> 'run';
  at   timestamptz := coalesce((p ->> 'now')::timestamptz, clock_timestamp());
  made cronce.run;
BEGIN
  PERFORM cronce.require_schema((p ->> 'schema')::integer);
  PERFORM cronce.demand_durability();
  INSERT INTO cronce.job (deployment, name, first_seen_at) VALUES (p ->> 'deployment', want ->> 'job', at) ON CONFLICT DO NOTHING;
  INSERT INTO cronce.run AS r (id, deployment, job, slot, scheduled_for, slot_guessed, trigger, delivery_id, requested_by, request_reason,
      params, status, final, lock_name, fence, attempt, max_attempts, received_at, started_at, finished_at, error,
      publish_after)
    VALUES ((want ->> 'id')::uuid, p ->> 'deployment', want ->> 'job', want ->> 'slot', (want ->> 'scheduledFor')::timestamptz,
      (want ->> 'slotGuessed')::boolean, want ->> 'trigger', want ->> 'deliveryId', want ->> 'requestedBy', want ->> 'requestReason',
      coalesce(want -> 'params', 'null'), 'failed', true, p #>> '{lock,name}', 0, 1, 1, at, at, at, refuse.error,
      clock_timestamp() + interval '30 s')
    RETURNING r.* INTO made;
  RETURN cronce.record(made);
END $function$


CREATE OR REPLACE FUNCTION cronce.request_cancel(self uuid, by text)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  made cronce.run;
BEGIN
  PERFORM cronce.demand_durability();
  UPDATE cronce.run r SET
      cancel_requested_at = coalesce(r.cancel_requested_at, clock_timestamp()),
      cancel_requested_by = coalesce(r.cancel_requested_by, by)
    WHERE r.id = self AND r.status = 'running' RETURNING r.* INTO made;
  IF FOUND AND NOT cronce.holds(made.backend_pid, made.lock_key) THEN
    PERFORM cronce.settle_dead(
      ARRAY[self], ARRAY[made.fence], clock_timestamp(), 'cancelled while nobody held its lock');
  END IF;
  SELECT r.* INTO made FROM cronce.run r WHERE r.id = self;
  RETURN CASE WHEN made.id IS NOT NULL THEN cronce.record(made) END;
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


CREATE OR REPLACE FUNCTION cronce.resume_job(name text, by text, at timestamp with time zone, deployment text DEFAULT 'default'::text)
 RETURNS cronce.job
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  made cronce.job;
BEGIN
  UPDATE cronce.pause p SET resumed_at = greatest(p.paused_at, coalesce(at, clock_timestamp())), resumed_by = by
    WHERE p.deployment = resume_job.deployment AND p.job = resume_job.name AND p.resumed_at IS NULL;
  UPDATE cronce.job j SET paused_at = NULL, paused_by = NULL, pause_reason = NULL
    WHERE j.deployment = resume_job.deployment AND j.name = resume_job.name;
  SELECT j.* INTO made FROM cronce.job j WHERE j.deployment = resume_job.deployment AND j.name = resume_job.name;
  RETURN made;
END $function$


CREATE OR REPLACE FUNCTION cronce.settle(p jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  self uuid := (p ->> 'id')::uuid;
  own  boolean := coalesce((p ->> 'own')::boolean, false);
  made cronce.run;
BEGIN
  PERFORM cronce.demand_durability();
  PERFORM cronce.drain(self, 2000);
  UPDATE cronce.run r SET
      status = CASE WHEN r.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE p ->> 'status' END,
      final = cronce.is_final(r, p ->> 'status', (p ->> 'final')::boolean),
      error = nullif(p -> 'error', 'null'),
      finished_at = greatest(coalesce((p ->> 'now')::timestamptz, clock_timestamp()), r.started_at),
      publish_after = clock_timestamp() + interval '30 s',
      delay_until = CASE WHEN NOT own AND r.lock_delay_ms > 0 THEN 'infinity'::timestamptz END
    WHERE r.id = self AND r.status = 'running'
    RETURNING r.* INTO made;
  IF FOUND THEN
    PERFORM cronce.end_holder(made);
    PERFORM cronce.begin_delay(made);
  ELSE
    -- Its own process has heard of its end: now it is known to have stopped.
    UPDATE cronce.run r SET delay_until = NULL WHERE own AND r.id = self AND r.delay_until IS NOT NULL;
  END IF;
  SELECT r.* INTO made FROM cronce.run r WHERE r.id = self;
  RETURN CASE WHEN made.id IS NOT NULL THEN cronce.record(made) END;
END $function$


CREATE OR REPLACE FUNCTION cronce.settle_dead(ids uuid[], fences bigint[], at timestamp with time zone, why text)
 RETURNS SETOF cronce.run
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  one record;
BEGIN
  FOR one IN SELECT d.id, d.fence FROM unnest(ids, fences) d (id, fence) ORDER BY d.id LOOP
    CONTINUE WHEN NOT cronce.drain(one.id, 5000);
    RETURN QUERY UPDATE cronce.run r SET
        status = CASE WHEN r.cancel_requested_at IS NULL THEN 'lost' ELSE 'cancelled' END,
        final = cronce.is_final(r, 'lost', false),
        finished_at = greatest(at, r.started_at),
        publish_after = clock_timestamp() + interval '30 s',
        delay_until = CASE WHEN r.lock_delay_ms > 0
                           THEN clock_timestamp() + make_interval(secs => r.lock_delay_ms / 1000.0) END,
        error = jsonb_build_object('name', 'HolderGone', 'message', why)
      WHERE r.id = one.id AND r.fence = one.fence AND r.status = 'running'
      RETURNING r.*;
  END LOOP;
END $function$


CREATE OR REPLACE FUNCTION cronce.settle_key(deployment text, key text, handed boolean)
 RETURNS boolean
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  UPDATE cronce.idempotency_key k
    SET handed_at = CASE WHEN handed THEN clock_timestamp() END, taken_at = CASE WHEN handed THEN k.taken_at END
    WHERE k.deployment = settle_key.deployment AND k.key = settle_key.key AND k.handed_at IS NULL;
  RETURN FOUND;
END $function$


CREATE OR REPLACE FUNCTION cronce.settle_orphans(gap_ms integer, most integer, at timestamp with time zone, deployment text DEFAULT 'default'::text)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  ids    uuid[];
  fences bigint[];
BEGIN
  SELECT array_agg(o.id), array_agg(o.fence) INTO ids, fences FROM cronce.orphans(gap_ms, most, settle_orphans.deployment) o;
  PERFORM cronce.begin_delay(r) FROM cronce.run r
    WHERE r.delay_until = 'infinity' AND r.deployment = settle_orphans.deployment
      AND NOT cronce.holds(r.backend_pid, r.lock_key);
  RETURN (SELECT coalesce(jsonb_agg(cronce.record(s)), '[]') FROM cronce.settle_dead(
    ids, fences, coalesce(at, clock_timestamp()), 'its backend no longer holds its lock') s);
END $function$


CREATE OR REPLACE FUNCTION cronce.skip_run(p jsonb, at timestamp with time zone, own_key bigint, reason text, blocker uuid, owed boolean, again boolean)
 RETURNS cronce.run
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  want  jsonb := p -> 'run';
  self  uuid := (want ->> 'id')::uuid;
  whose text := (SELECT r.deployment FROM cronce.run r WHERE r.id = blocker);
  made  cronce.run;
BEGIN
  IF again THEN
    UPDATE cronce.run r SET status = 'skipped', skip_reason = reason, blocked_by = blocker, blocked_by_deployment = whose,
        lock_key = own_key, fence = NULL, attempt = NULL, claimed_at = clock_timestamp(), started_at = NULL,
        finished_at = at, final = CASE WHEN owed THEN false END, publish_after = clock_timestamp() + interval '30 s'
      WHERE r.id = self AND r.status = 'running' RETURNING r.* INTO made;
    IF NOT FOUND THEN
      SELECT r.* INTO made FROM cronce.run r WHERE r.id = self;
    END IF;
    RETURN made;
  END IF;
  INSERT INTO cronce.run AS r (id, deployment, job, slot, scheduled_for, slot_guessed, trigger, delivery_id, requested_by, request_reason,
      params, status, skip_reason, blocked_by, blocked_by_deployment, lock_name, lock_key, guard_key, max_attempts,
      after_lost, final, lease_ms, lock_delay_ms, received_at, claimed_at, finished_at, publish_after)
    VALUES (self, p ->> 'deployment', want ->> 'job', want ->> 'slot', cronce.due_time(p), (want ->> 'slotGuessed')::boolean,
      want ->> 'trigger', want ->> 'deliveryId', want ->> 'requestedBy', want ->> 'requestReason',
      coalesce(want -> 'params', 'null'), 'skipped',
      reason, blocker, whose, p #>> '{lock,name}', own_key, (p #>> '{lock,guard}')::bigint,
      (p #>> '{policy,maxAttempts}')::integer, p #>> '{policy,afterLost}', CASE WHEN owed THEN false END,
      (p ->> 'leaseMs')::integer, (p ->> 'lockDelayMs')::integer, at, clock_timestamp(), at,
      clock_timestamp() + interval '30 s')
    RETURNING r.* INTO made;
  RETURN made;
END $function$


CREATE OR REPLACE FUNCTION cronce.stands(self uuid)
 RETURNS boolean
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT EXISTS (SELECT FROM cronce.run r JOIN cronce.lock l ON l.key = r.lock_key
    WHERE r.id = stands.self AND r.status = 'running' AND l.fence = r.fence AND l.run_id = r.id)
$function$


CREATE OR REPLACE FUNCTION cronce.start_run(p jsonb, at timestamp with time zone, own_key bigint, rest_ms integer, blocker uuid, least_fence bigint, again boolean, is_first boolean)
 RETURNS cronce.run
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  want  jsonb := p -> 'run';
  self  uuid := (want ->> 'id')::uuid;
  token bigint;
  whose text;
  made  cronce.run;
BEGIN
  token := cronce.next_fence(own_key, p #>> '{lock,name}', own_key = (p #>> '{lock,guard}')::bigint, self, least_fence);
  IF blocker IS NOT NULL THEN
    whose := (SELECT r.deployment FROM cronce.run r WHERE r.id = blocker);
  END IF;
  IF again THEN
    UPDATE cronce.run r SET lock_key = own_key, fence = token, claimed_at = clock_timestamp(), started_at = at,
        delayed_ms = nullif(rest_ms, 0), blocked_by = blocker, blocked_by_deployment = whose, attempt = cronce.next_attempt(r.deployment, r.job, r.slot, self)
      WHERE r.id = self AND r.status = 'running' RETURNING r.* INTO made;
    IF NOT FOUND THEN
      SELECT r.* INTO made FROM cronce.run r WHERE r.id = self;
    END IF;
    RETURN made;
  END IF;
  INSERT INTO cronce.run AS r (id, deployment, job, slot, scheduled_for, slot_guessed, trigger, delivery_id, requested_by, request_reason,
      params, status, blocked_by, blocked_by_deployment, lock_name, lock_key, guard_key, fence, backend_pid, attempt, max_attempts, after_lost, lease_ms,
      lock_delay_ms, delayed_ms, received_at, claimed_at, started_at)
    VALUES (self, p ->> 'deployment', want ->> 'job', want ->> 'slot',
      CASE WHEN (want ->> 'scheduledForGuessed')::boolean THEN cronce.due_time(p) ELSE (want ->> 'scheduledFor')::timestamptz END, (want ->> 'slotGuessed')::boolean,
      want ->> 'trigger', want ->> 'deliveryId', want ->> 'requestedBy', want ->> 'requestReason',
      coalesce(want -> 'params', 'null'), 'running',
      blocker, whose, p #>> '{lock,name}', own_key, (p #>> '{lock,guard}')::bigint, token, pg_backend_pid(),
      CASE WHEN is_first THEN 1 ELSE cronce.next_attempt(p ->> 'deployment', want ->> 'job', want ->> 'slot', self) END,
      (p #>> '{policy,maxAttempts}')::integer, p #>> '{policy,afterLost}', (p ->> 'leaseMs')::integer,
      (p ->> 'lockDelayMs')::integer, nullif(rest_ms, 0), at, clock_timestamp(), at)
    RETURNING r.* INTO made;
  RETURN made;
END $function$


CREATE OR REPLACE FUNCTION cronce.take_key(p jsonb)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  own_deployment text := p ->> 'deployment';
  own_job  text := p ->> 'job';
  own_slot text := 'manual:' || (p ->> 'key');
  is_new   boolean;
  found_params jsonb;
  has_run  boolean;
  known    cronce.idempotency_key;
  at       timestamptz;
BEGIN
  PERFORM cronce.require_schema((p ->> 'schema')::integer);
  PERFORM cronce.demand_durability();
  DELETE FROM cronce.idempotency_key WHERE (deployment, key) IN (
    SELECT k.deployment, k.key FROM cronce.idempotency_key k
    WHERE k.deployment = own_deployment AND k.first_used_at < (p ->> 'before')::timestamptz
    ORDER BY k.first_used_at LIMIT 20 FOR UPDATE SKIP LOCKED);
  INSERT INTO cronce.idempotency_key AS k (deployment, key, job, fingerprint, scheduled_for, taken_at)
    VALUES (own_deployment, p ->> 'key', own_job, p ->> 'fingerprint', (p ->> 'scheduledFor')::timestamptz, clock_timestamp())
    ON CONFLICT DO NOTHING RETURNING k.* INTO known;
  is_new := FOUND;
  IF NOT is_new THEN
    SELECT k.* INTO known FROM cronce.idempotency_key k
      WHERE k.deployment = own_deployment AND k.key = p ->> 'key' FOR UPDATE;
  END IF;
  IF known.fingerprint IS DISTINCT FROM p ->> 'fingerprint' THEN
    RETURN jsonb_build_object('state', 'other');
  END IF;
  -- In the waiting for the row, time has passed.
  at := clock_timestamp();
  SELECT r.params, true INTO found_params, has_run FROM cronce.run r
    WHERE r.deployment = own_deployment AND r.job = own_job AND r.slot = own_slot ORDER BY r.id LIMIT 1;
  IF has_run THEN
    IF is_new AND found_params IS DISTINCT FROM p -> 'params' THEN -- a run of before there were keys, or of none
      DELETE FROM cronce.idempotency_key k WHERE k.deployment = own_deployment AND k.key = p ->> 'key';
      RETURN jsonb_build_object('state', 'other');
    END IF;
    RETURN jsonb_build_object('state', 'started');
  END IF;
  IF NOT is_new THEN
    IF known.handed_at > at - make_interval(secs => (p ->> 'lostAfterMs')::numeric / 1000) THEN
      RETURN jsonb_build_object('state', 'started');
    ELSIF known.taken_at > at - make_interval(secs => (p ->> 'patienceMs')::numeric / 1000) THEN
      RETURN jsonb_build_object('state', 'starting');
    END IF;
    UPDATE cronce.idempotency_key k SET taken_at = at, handed_at = NULL WHERE k.deployment = own_deployment AND k.key = p ->> 'key';
  END IF;
  RETURN jsonb_build_object('state', 'taken', 'scheduledFor', known.scheduled_for);
END $function$


CREATE OR REPLACE FUNCTION cronce.take_place(keys bigint[], guard bigint, self uuid, gap_ms integer)
 RETURNS bigint
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  k bigint;
BEGIN
  IF NOT pg_try_advisory_xact_lock(guard) THEN
    RETURN NULL;
  END IF;
  -- With several places a duplicate must not even touch one while its slot's run is about to enter.
  IF cardinality(keys) = 1 OR NOT cronce.is_starting(NULL, guard, self, gap_ms) THEN
    FOREACH k IN ARRAY keys LOOP
      BEGIN
        IF pg_try_advisory_xact_lock(k) THEN
          IF NOT cronce.is_starting(k, guard, self, gap_ms) THEN
            RETURN k;
          END IF;
          RAISE EXCEPTION USING ERRCODE = 'CR005';
        END IF;
      EXCEPTION WHEN SQLSTATE 'CR005' THEN
        NULL;
      END;
    END LOOP;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'CR005';
EXCEPTION WHEN SQLSTATE 'CR005' THEN
  RETURN NULL;
END $function$


CREATE OR REPLACE FUNCTION cronce.take_unpublished(own uuid[], most integer, deployment text DEFAULT 'default'::text)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  at   timestamptz := clock_timestamp(); -- the function itself could be no bound of an index
  due  cronce.run[];
  rest cronce.run[];
BEGIN
  SELECT coalesce(array_agg(d), '{}') INTO due FROM (
    SELECT r.* FROM cronce.run r
    WHERE r.id = ANY (own) AND r.published_at IS NULL AND r.finished_at IS NOT NULL
      AND r.deployment = take_unpublished.deployment
    ORDER BY r.id LIMIT most FOR UPDATE SKIP LOCKED) d;
  SELECT coalesce(array_agg(d), '{}') INTO rest FROM (
    SELECT r.* FROM cronce.run r
    WHERE r.published_at IS NULL AND r.finished_at IS NOT NULL AND r.deployment = take_unpublished.deployment
      AND r.publish_after <= at AND r.id <> ALL (own)
    ORDER BY r.publish_after LIMIT most - cardinality(due) FOR UPDATE SKIP LOCKED) d;
  due := due || rest;
  RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object(
      'run', cronce.record(due[i]), 'sentTo', due[i].published_to, 'attempts', due[i].publish_attempts) ORDER BY i), '[]')
    FROM generate_subscripts(due, 1) i);
END $function$


CREATE OR REPLACE FUNCTION cronce.timeline()
 RETURNS integer
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
  RETURN ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer;
EXCEPTION WHEN OTHERS THEN
  RETURN 1;
END $function$


CREATE OR REPLACE FUNCTION cronce.turn_away(p jsonb, why text)
 RETURNS jsonb
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
  self uuid := (p #>> '{run,id}')::uuid;
  made cronce.run;
  standing boolean := EXISTS (SELECT FROM cronce.run r WHERE r.id = self);
  keys bigint[] := ARRAY(SELECT k::bigint FROM jsonb_array_elements_text(p #> '{lock,keys}') k);
BEGIN
  PERFORM cronce.demand_durability();
  made := cronce.skip_run(p, coalesce((p ->> 'now')::timestamptz, clock_timestamp()), NULL, 'held',
    (SELECT r.id FROM cronce.run r WHERE r.id <> self AND r.lock_key = ANY (keys)
       AND (r.status = 'running' OR r.delay_until IS NOT NULL) ORDER BY r.status = 'running' DESC, r.id DESC LIMIT 1),
    true, standing);
  UPDATE cronce.run r SET error = jsonb_build_object('name', 'NotClaimed', 'message', why)
    WHERE r.id = self AND r.status = 'skipped' RETURNING r.* INTO made;
  IF NOT FOUND THEN -- someone settled it meanwhile (a cancel): its outcome stands, its work never began
    UPDATE cronce.run r SET delay_until = NULL WHERE r.id = self RETURNING r.* INTO made;
  END IF;
  RETURN cronce.record(made);
END $function$


CREATE OR REPLACE FUNCTION cronce.waits_for(pid integer, other integer)
 RETURNS boolean
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  WITH RECURSIVE chain (pid) AS (
    SELECT unnest(pg_blocking_pids(waits_for.pid))
    UNION
    SELECT b FROM chain c, unnest(pg_blocking_pids(c.pid)) b)
  SELECT EXISTS (SELECT FROM chain c WHERE c.pid = waits_for.other)
$function$


CREATE OR REPLACE FUNCTION cronce.watch(pid integer, key bigint, self uuid)
 RETURNS jsonb
 LANGUAGE sql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
  SELECT coalesce(cronce.beat(watch.self), '{}') || jsonb_build_object('atWork',
    coalesce((SELECT a.state = 'active' FROM pg_stat_get_activity(watch.pid) a), false)
    AND cronce.holds(watch.pid, watch.key))
$function$

