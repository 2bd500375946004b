-- Ends unfinished runs as lost or, where someone had asked for it, cancelled. The caller has proof that their locks are
-- free, under the fence that they had then: one that claimed anew meanwhile has another and is left alone. Their work
-- may still go on: the next run of their locks waits for their delay, from now on. Rows are locked in one order.
CREATE OR REPLACE FUNCTION cronce.settle_dead(ids uuid[], fences bigint[], at timestamptz, why text)
RETURNS SETOF cronce.run
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  one record;
BEGIN
  FOR one IN SELECT d.id, d.fence FROM unnest(ids, fences) d (id, fence) ORDER BY d.id LOOP
    CONTINUE WHEN NOT cronce.drain(one.id, 5000);
    RETURN QUERY UPDATE cronce.run r SET
        status = CASE WHEN r.cancel_requested_at IS NULL THEN 'lost' ELSE 'cancelled' END,
        final = cronce.is_final(r, 'lost', false),
        finished_at = greatest(at, r.started_at),
        publish_after = clock_timestamp() + interval '30 s',
        delay_until = CASE WHEN r.lock_delay_ms > 0
                           THEN clock_timestamp() + make_interval(secs => r.lock_delay_ms / 1000.0) END,
        error = jsonb_build_object('name', 'HolderGone', 'message', why)
      WHERE r.id = one.id AND r.fence = one.fence AND r.status = 'running'
      RETURNING r.*;
  END LOOP;
END $$;
