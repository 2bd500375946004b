-- The run that a delivery of a schedule was turned away for, where that one catches up or makes up for another slot: then
-- nothing is given up, the delivery becomes owed. Null where it is another delivery of that very slot; where a person asked
-- for this run, who hears of it; and where the sweep did, since it is owed already. p as of `claim`.
CREATE OR REPLACE FUNCTION cronce.held_by_catch_up(p jsonb, keys bigint[], in_way cronce.run) RETURNS uuid
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.id FROM cronce.run r
  WHERE r.status = 'running' AND r.lock_key = ANY (keys) AND r.trigger = 'sweep'
    AND p #>> '{run,trigger}' NOT IN ('manual', 'sweep')
    AND (in_way.deployment, in_way.job, in_way.slot)
        IS DISTINCT FROM (p ->> 'deployment', p #>> '{run,job}', p #>> '{run,slot}')
  ORDER BY r.id = in_way.id DESC, r.claimed_at LIMIT 1
$$;
