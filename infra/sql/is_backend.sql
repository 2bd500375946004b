CREATE OR REPLACE FUNCTION cronce.is_backend(pid integer) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM pg_stat_get_activity(is_backend.pid))
$$;
