-- Asks for the end of a run: its holder hears of it with the next heartbeat. One that holds no lock is ended here.
-- Null where there is no such run; one that is over is answered as it is.
CREATE OR REPLACE FUNCTION cronce.request_cancel(self uuid, by text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
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
END $$;
