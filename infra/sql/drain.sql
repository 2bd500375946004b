-- Sees to it that no fenced transaction of a run is left, and that none can begin before the caller's own transaction
-- has ended. One that is committing gets a moment; one that goes on (in mid-statement, or cut off) is ended. False where
-- that was not to be had in time: then its lease ends it.
CREATE OR REPLACE FUNCTION cronce.drain(run uuid, limit_ms integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
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
END $$;
