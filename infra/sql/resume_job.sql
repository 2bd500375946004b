CREATE OR REPLACE FUNCTION cronce.resume_job(name text, by text, at timestamptz, deployment text DEFAULT 'default')
RETURNS cronce.job
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made cronce.job;
BEGIN
  UPDATE cronce.pause p SET resumed_at = greatest(p.paused_at, coalesce(at, clock_timestamp())), resumed_by = by
    WHERE p.deployment = resume_job.deployment AND p.job = resume_job.name AND p.resumed_at IS NULL;
  UPDATE cronce.job j SET paused_at = NULL, paused_by = NULL, pause_reason = NULL
    WHERE j.deployment = resume_job.deployment AND j.name = resume_job.name;
  SELECT j.* INTO made FROM cronce.job j WHERE j.deployment = resume_job.deployment AND j.name = resume_job.name;
  RETURN made;
END $$;
