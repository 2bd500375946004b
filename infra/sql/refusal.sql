-- Why a delivery should not run although its lock is free; no row where it should.
CREATE OR REPLACE FUNCTION cronce.refusal(p jsonb, at timestamptz, self uuid) RETURNS TABLE (reason text, blocker uuid)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own_deployment text := p ->> 'deployment';
  want    jsonb := p -> 'run';
  own_job  text := want ->> 'job';
  own_slot text := want ->> 'slot';
  policy   jsonb := p -> 'policy';
  over     record;
BEGIN
  -- Of the slot's runs that are over for good: a success, else one that was lost, else the last.
  SELECT r.id, r.status, r.after_lost INTO over FROM cronce.run r
    WHERE r.deployment = own_deployment AND r.job = own_job AND r.slot = own_slot AND r.id <> self
      AND (r.final OR r.status = 'succeeded')
    ORDER BY r.status = 'succeeded' DESC, r.status = 'lost' DESC, r.id DESC LIMIT 1;
  IF over.status = 'succeeded' THEN
    RETURN QUERY SELECT 'duplicate', over.id;
    RETURN;
  END IF;
  IF (want ->> 'offSchedule')::boolean AND NOT EXISTS (
      SELECT FROM cronce.run r WHERE r.deployment = own_deployment AND r.job = own_job AND r.slot = own_slot
        AND r.id <> self AND r.skip_reason IS DISTINCT FROM 'off_schedule') THEN
    RETURN QUERY SELECT 'off_schedule', NULL::uuid;
    RETURN;
  END IF;
  -- The success that would turn it away may be pruned; so for an operator too.
  IF (want ->> 'scheduledFor')::timestamptz + make_interval(secs => (policy ->> 'retentionMs')::numeric / 1000) < at THEN
    RETURN QUERY SELECT 'too_late', NULL::uuid;
    RETURN;
  END IF;
  IF (policy ->> 'byHand')::boolean THEN -- an operator may run a failed, held or missed slot again, paused or late
    RETURN;
  END IF;
  IF over.id IS NOT NULL THEN
    RETURN QUERY SELECT CASE WHEN over.status = 'lost' AND over.after_lost = 'hold' THEN 'on_hold' ELSE 'duplicate' END, over.id;
    RETURN;
  END IF;
  RETURN QUERY SELECT 'paused', NULL::uuid FROM cronce.job j
    WHERE j.deployment = own_deployment AND j.name = own_job AND j.paused_at IS NOT NULL;
  IF FOUND THEN
    RETURN;
  END IF;
  IF (want ->> 'scheduledFor')::timestamptz
     + make_interval(secs => (policy ->> 'startDeadlineMs')::numeric / 1000) < at THEN
    RETURN QUERY SELECT 'too_late', NULL::uuid;
  END IF;
END $$;
