-- The slot that a job owes and is to be delivered next, the oldest; null where there is none, where one is on its way, and
-- while the job is paused. One at a time: whoever chooses has the job's row, and who comes meanwhile leaves it to him.
-- What is answered counts as asked for; `not_asked` takes that back. `manual`: those that were run by hand, alone.
CREATE OR REPLACE FUNCTION cronce.next_owed(deployment text, job text, patience_ms bigint, at timestamptz DEFAULT NULL,
  since timestamptz DEFAULT NULL, manual boolean DEFAULT false) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  chosen uuid;
  busy   boolean;
  more   boolean;
  made   cronce.run;
BEGIN
  PERFORM FROM cronce.job j
    WHERE j.deployment = next_owed.deployment AND j.name = next_owed.job AND j.paused_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  PERFORM cronce.pay(next_owed.deployment, next_owed.job);
  SELECT bool_or(o.on_its_way), (array_agg(o.id ORDER BY o.due, o.id) FILTER (WHERE o.ready
           AND (NOT next_owed.manual OR o.slot LIKE 'manual:%')))[1], count(DISTINCT o.slot) > 1
    INTO busy, chosen, more
    FROM cronce.owed(next_owed.deployment, next_owed.job, next_owed.patience_ms, next_owed.at, next_owed.since) o;
  IF busy THEN
    RETURN NULL;
  END IF;
  UPDATE cronce.job j SET owes = more
    WHERE j.deployment = next_owed.deployment AND j.name = next_owed.job AND j.owes <> more;
  UPDATE cronce.run r SET asked_at = coalesce(next_owed.at, clock_timestamp()) WHERE r.id = chosen RETURNING r.* INTO made;
  RETURN CASE WHEN made.id IS NOT NULL THEN cronce.record(made) END;
END $$;
