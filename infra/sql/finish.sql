-- Records the outcome inside T1. Raises, so that the COMMIT sent behind it does nothing, unless exactly this run,
-- still running, under the lock's current fence, is what it touches; and where someone has asked for its end, so that a
-- cancel is heeded whenever it came. Work that was cut off (not `own`) may still go on: the lock's next run waits for it.
-- p: {id, own, status, final, output, error, now}
CREATE OR REPLACE FUNCTION cronce.finish(p jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  self uuid := (p ->> 'id')::uuid;
  made cronce.run;
BEGIN
  PERFORM cronce.demand_durability();
  IF NOT pg_try_advisory_xact_lock(hashtextextended(self::text, 0)) THEN -- cronce.fenced_key, without a call
    PERFORM cronce.drain(self, 2000);
  END IF;
  UPDATE cronce.run r SET
      status = CASE WHEN r.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE p ->> 'status' END,
      final = cronce.is_final(r, p ->> 'status', (p ->> 'final')::boolean),
      output = coalesce(p -> 'output', 'null'), error = nullif(p -> 'error', 'null'),
      finished_at = greatest(coalesce((p ->> 'now')::timestamptz, clock_timestamp()), r.started_at),
      delay_until = CASE WHEN NOT coalesce((p ->> 'own')::boolean, true) AND r.lock_delay_ms > 0
                         THEN 'infinity'::timestamptz END,
      publish_after = clock_timestamp() + interval '30 s'
    WHERE r.id = self AND cronce.stands(self) AND r.status = 'running'
    RETURNING r.* INTO made;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'CR004', MESSAGE = 'the run no longer stands as running under the last fence';
  END IF;
  IF made.status = 'cancelled' AND p ->> 'status' = 'succeeded' THEN
    RAISE EXCEPTION USING ERRCODE = 'CR006', MESSAGE = 'cancelled by ' || made.cancel_requested_by;
  END IF;
  RETURN cronce.record(made);
END $$;
