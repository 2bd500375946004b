-- Whether a slot was delivered by its schedule, whatever became of it: such a slot ends an outage. What was run by hand or
-- by the sweep does not.
CREATE OR REPLACE FUNCTION cronce.came_by_itself(r cronce.run) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.trigger NOT IN ('sweep', 'manual') AND r.slot NOT LIKE 'refused:%'
    AND r.skip_reason IS DISTINCT FROM 'off_schedule'
$$;
