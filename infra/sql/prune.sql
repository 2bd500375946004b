-- Deletes up to `most` runs that ended before `before`, the oldest first, but keeps the last success and the last failure of
-- each job. With the last run of one slot's lock (`overlap: allow`) goes that lock; any other keeps its fence. Answers
-- {pruned, until}: a next batch begins at `until`, so that it does not walk once more over what this one has deleted; null
-- where nothing is left. A run whose slot is due later than `before` stays: its success is still to turn deliveries away.
-- Rows that someone has locked (a relay sends them) are left for the next time.
CREATE OR REPLACE FUNCTION cronce.prune(before timestamptz, most integer, deployment text DEFAULT 'default',
  since timestamptz DEFAULT '-infinity') RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone  uuid[];
  until timestamptz;
BEGIN
  SELECT array_agg(d.id), max(d.finished_at) INTO gone, until FROM (
    SELECT r.id, r.finished_at FROM cronce.run r
    WHERE r.deployment = prune.deployment AND r.finished_at >= prune.since AND r.finished_at < prune.before
      AND r.scheduled_for < prune.before
      AND (r.status NOT IN ('succeeded', 'failed', 'timed_out', 'lost') OR EXISTS (
        SELECT FROM cronce.run n WHERE n.deployment = r.deployment AND n.job = r.job AND n.id > r.id
          AND coalesce(n.skip_reason, n.status) = ANY (
            CASE r.status WHEN 'succeeded' THEN ARRAY['succeeded'] ELSE ARRAY['failed', 'timed_out', 'lost'] END)))
    ORDER BY r.finished_at LIMIT most FOR UPDATE OF r SKIP LOCKED) d;
  DELETE FROM cronce.run r WHERE r.id = ANY (gone);
  DELETE FROM cronce.lock l WHERE l.of_slot AND l.run_id = ANY (gone);
  RETURN jsonb_build_object('pruned', coalesce(cardinality(gone), 0),
    'until', CASE WHEN cardinality(gone) = most THEN until END);
END $$;
