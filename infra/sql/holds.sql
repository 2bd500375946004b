CREATE OR REPLACE FUNCTION cronce.holds(pid integer, key bigint) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM cronce.held_keys() h WHERE h.pid = holds.pid AND h.key = holds.key)
$$;
