-- The outbox: what is over and not yet published, the caller's own record first. Rows stay locked until the caller
-- commits, and others pass them by. What has just ended is left to its own invocation for a moment.
CREATE OR REPLACE FUNCTION cronce.take_unpublished(own uuid[], most integer, deployment text DEFAULT 'default') RETURNS jsonb
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(jsonb_agg(jsonb_build_object('run', cronce.record(due), 'sentTo', due.published_to)), '[]')
  FROM (SELECT r.* FROM cronce.run r
        WHERE r.published_at IS NULL AND r.finished_at IS NOT NULL AND r.deployment = take_unpublished.deployment
          AND (r.id = ANY (own) OR r.publish_after <= clock_timestamp())
        ORDER BY (r.id = ANY (own)) DESC NULLS LAST, r.publish_after LIMIT most FOR UPDATE SKIP LOCKED) due
$$;
