-- Records what a claim has decided: a start under the lock's next fence, or, with a reason, a skip. Whose run stood in the
-- way is kept with both: the one that a delayed start waits for too. p as of `claim`.
CREATE OR REPLACE FUNCTION cronce.claimed(p jsonb, at timestamptz, key bigint, reason text, blocker uuid, owed boolean,
  rest_ms integer, again boolean) RETURNS cronce.run
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  want jsonb := p -> 'run';
  self uuid := (want ->> 'id')::uuid;
  made cronce.run;
BEGIN
  made.id := self;
  made.deployment := p ->> 'deployment';
  made.job := want ->> 'job';
  made.slot := want ->> 'slot';
  made.lock_key := key;
  made.claimed_at := clock_timestamp();
  made.blocked_by := blocker;
  made.blocked_by_deployment := (SELECT r.deployment FROM cronce.run r WHERE r.id = made.blocked_by);
  IF reason IS NULL THEN
    made.status := 'running';
    made.started_at := at;
    made.delayed_ms := nullif(rest_ms, 0);
    made.attempt := (SELECT count(*) + 1 FROM cronce.run r
      WHERE r.deployment = made.deployment AND r.job = made.job AND r.slot = made.slot
        AND r.attempt IS NOT NULL AND r.status <> 'running' AND r.id <> self);
    made.fence := cronce.next_fence(key, p #>> '{lock,name}', key = (p #>> '{lock,guard}')::bigint, self, cronce.timeline());
  ELSE
    made.status := 'skipped';
    made.skip_reason := reason;
    made.finished_at := at;
    made.final := CASE WHEN owed THEN false END;
  END IF;

  IF again THEN
    UPDATE cronce.run r SET
        status = made.status, skip_reason = made.skip_reason, blocked_by = made.blocked_by,
        blocked_by_deployment = made.blocked_by_deployment, lock_key = made.lock_key, fence = made.fence,
        claimed_at = made.claimed_at, attempt = made.attempt, started_at = made.started_at,
        finished_at = made.finished_at, final = made.final, delayed_ms = made.delayed_ms,
        publish_after = clock_timestamp() + interval '30 s'
      WHERE r.id = self AND r.status = 'running' RETURNING r.* INTO made;
    IF NOT FOUND THEN
      SELECT r.* INTO made FROM cronce.run r WHERE r.id = self;
    END IF;
    RETURN made;
  END IF;
  INSERT INTO cronce.run AS r (id, deployment, job, slot, scheduled_for, slot_guessed, trigger, delivery_id, requested_by,
      params, status, skip_reason, blocked_by, blocked_by_deployment, lock_name, lock_key, guard_key, fence, backend_pid,
      attempt, max_attempts, after_lost, final, lease_ms, lock_delay_ms, delayed_ms, received_at, claimed_at,
      started_at, finished_at, publish_after)
    VALUES (self, made.deployment, made.job, made.slot,
      coalesce(CASE WHEN (want ->> 'scheduledForGuessed')::boolean THEN cronce.first_due(made.deployment, made.job, made.slot) END,
               (want ->> 'scheduledFor')::timestamptz),
      (want ->> 'slotGuessed')::boolean, want ->> 'trigger', want ->> 'deliveryId', want ->> 'requestedBy',
      coalesce(want -> 'params', 'null'), made.status, made.skip_reason, made.blocked_by, made.blocked_by_deployment,
      p #>> '{lock,name}', key, (p #>> '{lock,guard}')::bigint, made.fence, pg_backend_pid(), made.attempt,
      (p #>> '{policy,maxAttempts}')::integer, p #>> '{policy,afterLost}', made.final, (p ->> 'leaseMs')::integer,
      (p ->> 'lockDelayMs')::integer, made.delayed_ms, at, made.claimed_at, made.started_at, made.finished_at,
      clock_timestamp() + interval '30 s')
    RETURNING r.* INTO made;
  RETURN made;
END $$;
