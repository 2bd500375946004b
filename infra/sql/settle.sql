-- Records an outcome from outside T1: its connection is dead (`own`: the run's own process says so), or someone ends it by
-- force. What stands already is answered unchanged. A run whose end someone had asked for was cancelled.
-- Only one that ended by its own hand has surely stopped. Any other may still be at work, for its lock delay after its lock
-- was first found free. p: {id, own, status, final, output, error, now}
CREATE OR REPLACE FUNCTION cronce.settle(p jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
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
END $$;
