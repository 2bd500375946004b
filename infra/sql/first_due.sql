-- When a slot was due by its first record: a manual run's time is said once, and is the same in each attempt.
CREATE OR REPLACE FUNCTION cronce.first_due(deployment text, job text, slot text) RETURNS timestamptz
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.scheduled_for FROM cronce.run r
  WHERE r.deployment = first_due.deployment AND r.job = first_due.job AND r.slot = first_due.slot ORDER BY r.id LIMIT 1
$$;
