-- Whether a backend waits, directly or through others, for a lock of another.
CREATE OR REPLACE FUNCTION cronce.waits_for(pid integer, other integer) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE chain (pid) AS (
    SELECT unnest(pg_blocking_pids(waits_for.pid))
    UNION
    SELECT b FROM chain c, unnest(pg_blocking_pids(c.pid)) b)
  SELECT EXISTS (SELECT FROM chain c WHERE c.pid = waits_for.other)
$$;
