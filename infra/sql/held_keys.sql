-- The advisory locks of the one-bigint space that are held in this database, by pg_locks, which any role may read.
CREATE OR REPLACE FUNCTION cronce.held_keys() RETURNS TABLE (pid integer, key bigint, shared boolean)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT l.pid, (l.classid::bigint << 32) | l.objid::bigint, l.mode = 'ShareLock'
  FROM pg_locks l
  WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;
