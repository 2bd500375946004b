-- Settles what dead invocations left behind, and answers the records. Begins the lock delays that nobody began yet.
CREATE OR REPLACE FUNCTION cronce.settle_orphans(gap_ms integer, most integer, at timestamptz, deployment text DEFAULT 'default')
RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids    uuid[];
  fences bigint[];
BEGIN
  SELECT array_agg(o.id), array_agg(o.fence) INTO ids, fences FROM cronce.orphans(gap_ms, most, settle_orphans.deployment) o;
  PERFORM cronce.begin_delay(r) FROM cronce.run r
    WHERE r.delay_until = 'infinity' AND r.deployment = settle_orphans.deployment
      AND NOT cronce.holds(r.backend_pid, r.lock_key);
  RETURN (SELECT coalesce(jsonb_agg(cronce.record(s)), '[]') FROM cronce.settle_dead(
    ids, fences, coalesce(at, clock_timestamp()), 'its backend no longer holds its lock') s);
END $$;
