-- The how-manyth started run of its slot comes next; what was skipped was no attempt.
CREATE OR REPLACE FUNCTION cronce.next_attempt(own_deployment text, own_job text, own_slot text, self uuid) RETURNS integer
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT count(*)::integer + 1 FROM cronce.run r
  WHERE r.deployment = own_deployment AND r.job = own_job AND r.slot = own_slot
    AND r.attempt IS NOT NULL AND r.status <> 'running' AND r.id <> self
$$;
