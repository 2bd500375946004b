-- Begins the lock delay of a run that was ended by force, once its lock is found free of it; where that takes longer than
-- half a second, the first claim or sweep that finds it free does.
CREATE OR REPLACE FUNCTION cronce.begin_delay(r cronce.run) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
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
END $$;
