-- Whether a run is running, under the last fence of its lock.
CREATE OR REPLACE FUNCTION cronce.stands(self uuid) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM cronce.run r JOIN cronce.lock l ON l.key = r.lock_key
    WHERE r.id = stands.self AND r.status = 'running' AND l.fence = r.fence AND l.run_id = r.id)
$$;
