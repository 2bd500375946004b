-- For a holder whose heartbeats can't pass a long statement: whether its backend is at work and holds the lock. The
-- idle timer stands still until the statement ends, so the holder then has at least one lease from the asking on.
CREATE OR REPLACE FUNCTION cronce.watch(pid integer, key bigint, self uuid) RETURNS jsonb
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(cronce.beat(watch.self), '{}') || jsonb_build_object('atWork',
    coalesce((SELECT a.state = 'active' FROM pg_stat_get_activity(watch.pid) a), false)
    AND cronce.holds(watch.pid, watch.key))
$$;
