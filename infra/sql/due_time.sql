-- When a delivery's slot is due. A manual run's time that nobody said is the clock's, once: that of the slot's first record
-- counts in each attempt. p as of `claim`.
CREATE OR REPLACE FUNCTION cronce.due_time(p jsonb) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (p #>> '{run,scheduledForGuessed}')::boolean THEN
    RETURN coalesce((SELECT r.scheduled_for FROM cronce.run r WHERE r.deployment = p ->> 'deployment'
      AND r.job = p #>> '{run,job}' AND r.slot = p #>> '{run,slot}' ORDER BY r.id LIMIT 1), (p #>> '{run,scheduledFor}')::timestamptz);
  END IF;
  RETURN (p #>> '{run,scheduledFor}')::timestamptz;
END $$;
