-- Records a delivery that was turned away, with its reason and the run that stood in the way. `owed`: it was given up for
-- want of time, and is delivered again. p as of `claim`; `again`: for a run that gave way between T0 and T1.
CREATE OR REPLACE FUNCTION cronce.skip_run(p jsonb, at timestamptz, own_key bigint, reason text, blocker uuid, owed boolean, again boolean)
RETURNS cronce.run
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
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
END $$;
