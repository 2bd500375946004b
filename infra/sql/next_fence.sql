-- Gives out the next fence of a lock. After a failover that lost the last commits the same numbers would come again: so
-- each timeline since the first has a range of its own, from `least_fence` on.
CREATE OR REPLACE FUNCTION cronce.next_fence(own_key bigint, own_name text, for_slot boolean, self uuid, least_fence bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  given bigint;
BEGIN
  INSERT INTO cronce.lock AS l (key, name, fence, run_id, of_slot)
    VALUES (own_key, own_name, greatest(1, least_fence), self, for_slot)
    ON CONFLICT ON CONSTRAINT lock_pkey DO UPDATE SET
      fence = greatest(l.fence + 1, least_fence), run_id = excluded.run_id, name = excluded.name,
      of_slot = excluded.of_slot
    RETURNING l.fence INTO given;
  RETURN given;
END $$;
