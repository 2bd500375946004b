-- Raises unless the run stands: sent in one message with the COMMIT of a fenced transaction.
CREATE OR REPLACE FUNCTION cronce.demand_fence(self uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF cronce.stands(self) THEN
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'CR004', MESSAGE = 'the run no longer stands as running under the last fence';
END $$;
