-- The times of all of a job's slots that anything was ever recorded of, within a span.
CREATE OR REPLACE FUNCTION cronce.delivered(job text, since timestamptz, until timestamptz, deployment text DEFAULT 'default')
RETURNS timestamptz[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT ARRAY(SELECT DISTINCT r.scheduled_for FROM cronce.run r
    WHERE r.deployment = delivered.deployment AND r.job = delivered.job AND r.slot NOT LIKE 'manual:%'
      AND r.skip_reason IS DISTINCT FROM 'off_schedule'
      AND r.scheduled_for BETWEEN delivered.since AND delivered.until
    ORDER BY r.scheduled_for)
$$;
