-- The server keeps what it has once shown of its backends until the transaction ends: a claim that waits would take one
-- that connected since for dead, and one that has ended for alive. So each look is a fresh one.
CREATE OR REPLACE FUNCTION cronce.is_backend(pid integer) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT pg_stat_clear_snapshot();
  SELECT EXISTS (SELECT FROM pg_stat_get_activity(is_backend.pid)) AND is_backend.pid IS NOT NULL -- asked for none, it answers all
$$;
