-- Slots that are still owed a run. Those whose last started run went wrong, may be tried again, and got no retry in
-- `patience_ms`: Lambda's own retries come after 1 and 2 minutes, and the deliveries that met a dead holder were told
-- `held` and won't return. And those whose delivery was given up for want of time. None that ended before `since`, the
-- limit of retention: of an old slot the success may be deleted, and the failure kept. Only of `jobs`, where given.
CREATE OR REPLACE FUNCTION cronce.abandoned(patience_ms bigint, most integer, at timestamptz, since timestamptz,
  deployment text DEFAULT 'default', jobs text[] DEFAULT NULL) RETURNS jsonb
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(jsonb_agg(cronce.record(a) ORDER BY a.scheduled_for, a.id), '[]') FROM (
    SELECT r.* FROM cronce.run r
    WHERE r.deployment = abandoned.deployment AND (abandoned.jobs IS NULL OR r.job = ANY (abandoned.jobs))
      AND r.status IN ('lost', 'failed', 'timed_out', 'skipped') AND r.final = false AND r.finished_at >= abandoned.since
      AND r.finished_at < coalesce(abandoned.at, clock_timestamp())
          - make_interval(secs => CASE WHEN r.status = 'skipped' THEN 0 ELSE abandoned.patience_ms / 1000.0 END)
      AND NOT EXISTS (
        SELECT FROM cronce.run l WHERE l.deployment = r.deployment AND l.job = r.job AND l.slot = r.slot
          AND l.id > r.id AND l.status <> 'missed'
          AND (l.skip_reason IS DISTINCT FROM 'held' OR l.final = false
               OR l.received_at > coalesce(abandoned.at, clock_timestamp())
                                  - make_interval(secs => abandoned.patience_ms / 1000.0)))
    ORDER BY r.scheduled_for, r.id LIMIT most) a
$$;
