-- The run that stands in the way: the one of the same slot, or any where each place is taken. Only a run that lives
-- counts: it holds its lock, or is about to. Null where a place may come free in a moment (another delivery is in its T0)
-- or a client that is not ours has it.
CREATE OR REPLACE FUNCTION cronce.holder_of(keys bigint[], guard bigint, self uuid, gap_ms integer) RETURNS cronce.run
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  alive cronce.run[];
  found cronce.run;
BEGIN
  SELECT array_agg(r ORDER BY r.guard_key = guard DESC NULLS LAST, r.claimed_at) INTO alive FROM cronce.run r
    WHERE r.status = 'running' AND r.id <> self AND (r.lock_key = ANY (keys) OR r.guard_key = guard)
      AND (cronce.holds(r.backend_pid, r.lock_key)
           OR (r.claimed_at > clock_timestamp() - make_interval(secs => gap_ms / 1000.0)
               AND cronce.is_backend(r.backend_pid)));
  IF (alive[1]).guard_key = guard
     OR NOT EXISTS (SELECT FROM unnest(keys) k WHERE k NOT IN (SELECT a.lock_key FROM unnest(alive) a)) THEN
    found := alive[1];
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'CR005'; -- no lock of ours on our tables while the caller waits
EXCEPTION WHEN SQLSTATE 'CR005' THEN
  RETURN found;
END $$;
