-- Pausing a paused job and resuming one that runs change nothing. Both answer the job's row.
CREATE OR REPLACE FUNCTION cronce.pause_job(name text, by text, reason text, at timestamptz, deployment text DEFAULT 'default')
RETURNS cronce.job
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made cronce.job;
BEGIN
  INSERT INTO cronce.job (deployment, name, first_seen_at)
    VALUES (pause_job.deployment, pause_job.name, coalesce(at, clock_timestamp())) ON CONFLICT DO NOTHING;
  UPDATE cronce.job j SET paused_at = coalesce(at, clock_timestamp()), paused_by = by, pause_reason = reason
    WHERE j.deployment = pause_job.deployment AND j.name = pause_job.name AND j.paused_at IS NULL RETURNING j.* INTO made;
  IF FOUND THEN
    INSERT INTO cronce.pause (deployment, job, paused_at, paused_by, reason)
      VALUES (made.deployment, made.name, made.paused_at, by, pause_job.reason);
  ELSE
    SELECT j.* INTO made FROM cronce.job j WHERE j.deployment = pause_job.deployment AND j.name = pause_job.name;
  END IF;
  RETURN made;
END $$;
