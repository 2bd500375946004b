-- Another run that stands between its T0 and T1: it holds no lock yet, but its backend lives and it is about to. The
-- caller has the lock, so no such run is inside. It comes first: to run now would only make it give way.
CREATE OR REPLACE FUNCTION cronce.is_starting(key bigint, guard bigint, self uuid, gap_ms integer) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM cronce.run r
    WHERE r.status = 'running' AND (r.lock_key = is_starting.key OR r.guard_key = is_starting.guard)
      AND r.id <> is_starting.self
      AND r.claimed_at > clock_timestamp() - make_interval(secs => gap_ms / 1000.0)
      AND cronce.is_backend(r.backend_pid))
$$;
