-- Records a delivery that can't be run as it is (its lock can't be named, its event is not understood): failed, for good,
-- without a lock and without a fence of its own. p as of `claim`; error: a RunError.
CREATE OR REPLACE FUNCTION cronce.refuse(p jsonb, error jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
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
END $$;
