-- A schedule that is no longer deployed and whose slots are accounted for; it is known anew if it comes back.
CREATE OR REPLACE FUNCTION cronce.forget_schedule(job text, expression text, time_zone text, deployment text DEFAULT 'default',
  starts_at timestamptz DEFAULT NULL, ends_at timestamptz DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM cronce.schedule s WHERE s.deployment = forget_schedule.deployment AND s.job = forget_schedule.job
    AND s.expression = forget_schedule.expression AND s.time_zone = forget_schedule.time_zone
    AND s.starts_at = coalesce(forget_schedule.starts_at, '-infinity') AND s.ends_at = coalesce(forget_schedule.ends_at, 'infinity');
  RETURN FOUND;
END $$;
