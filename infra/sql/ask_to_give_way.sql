-- For `overlap: 'replace'`: asks the run of an earlier slot of the same job, one that stands in the way, to end. Null
-- where none does: another job's run, or a later slot's, is not ours to end.
CREATE OR REPLACE FUNCTION cronce.ask_to_give_way(deployment text, job text, slot text, due timestamptz, keys bigint[])
RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  holder uuid;
BEGIN
  SELECT r.id INTO holder FROM cronce.run r
    WHERE r.status = 'running' AND r.lock_key = ANY (keys) AND r.deployment = ask_to_give_way.deployment
      AND r.job = ask_to_give_way.job AND r.slot <> ask_to_give_way.slot AND r.scheduled_for <= due
    ORDER BY r.scheduled_for LIMIT 1;
  PERFORM cronce.request_cancel(holder, 'the run of ' || ask_to_give_way.slot) WHERE holder IS NOT NULL;
  RETURN holder;
END $$;
