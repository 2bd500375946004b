-- Records a start, under the lock's next fence, and for whose lock delay (`blocker`) it waits. p as of `claim`; `again`: for a run that gave way between T0 and T1.
CREATE OR REPLACE FUNCTION cronce.start_run(p jsonb, at timestamptz, own_key bigint, rest_ms integer, blocker uuid,
  least_fence bigint, again boolean, is_first boolean)
RETURNS cronce.run
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
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
END $$;
