-- The lock delay that the caller, who has just found this lock free, must wait before its work, and for whom. A run that
-- did not end by its own hand may still be at work for its delay after its lock was first found free.
CREATE OR REPLACE FUNCTION cronce.delay_of(key bigint, guard bigint, self uuid) RETURNS TABLE (ms integer, blocker uuid)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
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
END $$;
