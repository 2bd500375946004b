-- Whether no further attempt of the run's slot follows an outcome. Decided here, for whoever records one: success and
-- cancel settle a slot, also a cancel that was asked for and not heard; a permanent error would only come again; a lost run
-- may be for a person to look at; and then there are the attempts. In SQL, so that it costs its callers no call.
CREATE OR REPLACE FUNCTION cronce.is_final(r cronce.run, outcome text, permanent boolean) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT outcome IN ('succeeded', 'cancelled')
      OR r.cancel_requested_at IS NOT NULL
      OR coalesce(permanent, false)
      OR (outcome = 'lost' AND r.after_lost = 'hold')
      OR r.attempt >= r.max_attempts
$$;
