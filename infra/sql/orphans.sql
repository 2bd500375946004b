-- Start records whose holder is gone, exactly: their backend does not hold their key. Younger ones than `gap_ms` may
-- be between T0 and T1. pg_locks is read in a statement of its own, after the records: what finished in between is
-- settled already, and no longer `running` for whoever settles.
CREATE OR REPLACE FUNCTION cronce.orphans(gap_ms integer, most integer, deployment text DEFAULT 'default')
RETURNS TABLE (id uuid, fence bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  stale cronce.run[];
BEGIN
  SELECT array_agg(r) INTO stale FROM (
    SELECT * FROM cronce.run c
    WHERE c.status = 'running' AND c.claimed_at < clock_timestamp() - make_interval(secs => gap_ms / 1000.0)
      AND c.deployment = orphans.deployment
    ORDER BY c.claimed_at LIMIT most) r;
  RETURN QUERY SELECT r.id, r.fence FROM unnest(stale) r
    WHERE NOT EXISTS (SELECT FROM cronce.held_keys() h WHERE h.pid = r.backend_pid AND h.key = r.lock_key);
END $$;
