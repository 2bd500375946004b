-- Runs that ended before `before`, the oldest first, from `since` on, but for the last success and the last failure of each
-- job.
CREATE OR REPLACE FUNCTION cronce.expired(before timestamptz, most integer, deployment text, since timestamptz)
RETURNS TABLE (id uuid, finished_at timestamptz)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT r.id, r.finished_at FROM cronce.run r
  WHERE r.deployment = expired.deployment AND r.finished_at >= expired.since AND r.finished_at < expired.before
    AND (r.status NOT IN ('succeeded', 'failed', 'timed_out', 'lost') OR r.id < ANY (ARRAY(
      SELECT l.id FROM unnest(
        CASE r.status WHEN 'succeeded' THEN ARRAY['succeeded'] ELSE ARRAY['failed', 'timed_out', 'lost'] END) w (word)
      CROSS JOIN LATERAL (
        SELECT n.id FROM cronce.run n
        WHERE n.deployment = r.deployment AND n.job = r.job AND coalesce(n.skip_reason, n.status) = w.word
        ORDER BY n.id DESC NULLS LAST LIMIT 1) l)))
  ORDER BY r.finished_at LIMIT expired.most
$$;
