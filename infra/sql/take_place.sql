-- The first free place of a lock, or null; with it the guard of the slot, which keeps its duplicates apart. What is not
-- kept is let go at once (a transaction lock is let go by leaving its subtransaction): a place held for nothing turns
-- others away. In between nothing of ours stays locked, so that waiting stands in nobody's way.
CREATE OR REPLACE FUNCTION cronce.take_place(keys bigint[], guard bigint, self uuid, gap_ms integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  k bigint;
BEGIN
  IF NOT pg_try_advisory_xact_lock(guard) THEN
    RETURN NULL;
  END IF;
  -- With several places a duplicate must not even touch one while its slot's run is about to enter.
  IF cardinality(keys) = 1 OR NOT cronce.is_starting(NULL, guard, self, gap_ms) THEN
    FOREACH k IN ARRAY keys LOOP
      BEGIN
        IF pg_try_advisory_xact_lock(k) THEN
          IF NOT cronce.is_starting(k, guard, self, gap_ms) THEN
            RETURN k;
          END IF;
          RAISE EXCEPTION USING ERRCODE = 'CR005';
        END IF;
      EXCEPTION WHEN SQLSTATE 'CR005' THEN
        NULL;
      END;
    END LOOP;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'CR005';
EXCEPTION WHEN SQLSTATE 'CR005' THEN
  RETURN NULL;
END $$;
