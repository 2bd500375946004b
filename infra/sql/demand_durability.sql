-- COMMIT must mean durable here, whatever the role's default; a stricter setting is left alone.
CREATE OR REPLACE FUNCTION cronce.demand_durability() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
END $$;
