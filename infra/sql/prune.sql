-- Deletes up to `most` runs that ended before `before`, but keeps the last success and the last failure of each job. With
-- the last run of one slot's lock (`overlap: allow`) goes that lock; any other keeps its fence.
CREATE OR REPLACE FUNCTION cronce.prune(before timestamptz, most integer, deployment text DEFAULT 'default') RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone uuid[];
BEGIN
  WITH kept AS (
    SELECT max(r.id::text)::uuid AS id FROM cronce.run r
      WHERE r.deployment = prune.deployment AND r.status IN ('succeeded', 'failed', 'timed_out', 'lost')
      GROUP BY r.job, r.status = 'succeeded'),
  deleted AS (
    DELETE FROM cronce.run WHERE id IN (
      SELECT r.id FROM cronce.run r
      WHERE r.deployment = prune.deployment AND r.finished_at < before AND r.id NOT IN (SELECT k.id FROM kept k)
      ORDER BY r.finished_at LIMIT most)
    RETURNING id)
  SELECT array_agg(d.id) INTO gone FROM deleted d;
  DELETE FROM cronce.lock l WHERE l.of_slot AND l.run_id = ANY (gone);
  RETURN coalesce(cardinality(gone), 0);
END $$;
