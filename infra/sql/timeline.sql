-- The server's timeline, which each failover raises; 1 where the platform doesn't show it.
CREATE OR REPLACE FUNCTION cronce.timeline() RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer;
EXCEPTION WHEN OTHERS THEN
  RETURN 1;
END $$;
