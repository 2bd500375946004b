-- The outbox: what is over and not yet published, the caller's own records first. Rows stay locked until the caller
-- commits, and others pass them by. What has just ended is left to its own invocation for a moment. `attempts`: how often
-- each was tried before.
CREATE OR REPLACE FUNCTION cronce.take_unpublished(own uuid[], most integer, deployment text DEFAULT 'default') RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  at   timestamptz := clock_timestamp(); -- the function itself could be no bound of an index
  due  cronce.run[];
  rest cronce.run[];
BEGIN
  SELECT coalesce(array_agg(d), '{}') INTO due FROM (
    SELECT r.* FROM cronce.run r
    WHERE r.id = ANY (own) AND r.published_at IS NULL AND r.finished_at IS NOT NULL
      AND r.deployment = take_unpublished.deployment
    ORDER BY r.id LIMIT most FOR UPDATE SKIP LOCKED) d;
  SELECT coalesce(array_agg(d), '{}') INTO rest FROM (
    SELECT r.* FROM cronce.run r
    WHERE r.published_at IS NULL AND r.finished_at IS NOT NULL AND r.deployment = take_unpublished.deployment
      AND r.publish_after <= at AND r.id <> ALL (own)
    ORDER BY r.publish_after LIMIT most - cardinality(due) FOR UPDATE SKIP LOCKED) d;
  due := due || rest;
  RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object(
      'run', cronce.record(due[i]), 'sentTo', due[i].published_to, 'attempts', due[i].publish_attempts) ORDER BY i), '[]')
    FROM generate_subscripts(due, 1) i);
END $$;
