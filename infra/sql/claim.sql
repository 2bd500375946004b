-- T0: takes the lock, and only then looks. A look in the lock's own statement would use a snapshot from before it.
-- p: {schema, deployment, now, again, gapMs, leaseMs, lockDelayMs, timeLeftMs, timeoutMs,
--     run{id, job, slot, scheduledFor, scheduledForGuessed, slotGuessed, offSchedule, trigger, deliveryId, requestedBy, params},
--     lock{name, keys[], guard, waitMs, patienceMs}, policy{byHand, maxAttempts, afterLost, startDeadlineMs, retentionMs, replace}}
-- `again` claims anew for a run that had to give way between T0 and T1: the same record, a new fence.
-- Answers {run, restMs, owes, settled[]}, `owes` being whether the job owes slots; or, with nothing recorded, {replace: id}
-- where the run in the way was asked to end for this one, or {slot, scheduledFor} where the slot was guessed before, for the
-- same request, to be another.
CREATE OR REPLACE FUNCTION cronce.claim(p jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
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
END $$;
