-- Deletes up to `most` of the runs that are `cronce.expired`. With the last run of one slot's lock (`overlap: allow`) goes
-- that lock; any other keeps its fence. Answers {pruned, until}: a next batch begins at `until`, so that it does not walk
-- once more over what this one has deleted; null where nothing is left. What someone has locked (a relay sends it) is left
-- for the next time.
CREATE OR REPLACE FUNCTION cronce.prune(before timestamptz, most integer, deployment text DEFAULT 'default',
  since timestamptz DEFAULT '-infinity') RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found uuid[];
  gone  uuid[];
  until timestamptz;
BEGIN
  SELECT array_agg(e.id), max(e.finished_at) INTO found, until
    FROM cronce.expired(prune.before, most, prune.deployment, prune.since) e;
  SELECT array_agg(l.id) INTO gone FROM (
    SELECT r.id FROM cronce.run r WHERE r.id = ANY (found) FOR UPDATE SKIP LOCKED) l;
  DELETE FROM cronce.run r WHERE r.id = ANY (gone);
  DELETE FROM cronce.lock l WHERE l.of_slot AND l.run_id = ANY (gone);
  RETURN jsonb_build_object('pruned', coalesce(cardinality(gone), 0),
    'until', CASE WHEN cardinality(found) = most THEN until END);
END $$;
