-- What a job owes, slot by slot: a debt is a run with `final = false`, the last of its slot. Each with whether it is on its
-- way (asked for and not come yet within the patience, running, or run by the sweep with a retry of Lambda's to come), and
-- whether it may be asked for. Lambda's own retries come after 1 and 2 minutes, and the deliveries that met a dead holder were
-- told `held` and won't return: what went wrong waits for them with the patience. None that ended before `since`, the limit
-- of retention: of an old slot the success may be deleted, and the failure kept.
CREATE OR REPLACE FUNCTION cronce.owed(deployment text, job text, patience_ms bigint, at timestamptz, since timestamptz)
RETURNS TABLE (id uuid, slot text, due timestamptz, on_its_way boolean, ready boolean)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT d.id, d.slot, d.scheduled_for,
    s.running OR s.expected OR (s.patient AND d.trigger = 'sweep'),
    NOT (s.running OR s.expected OR s.patient)
  FROM cronce.run d,
    LATERAL (SELECT coalesce(owed.at, clock_timestamp()) - make_interval(secs => owed.patience_ms / 1000.0) AS long_ago) t,
    LATERAL (SELECT
      EXISTS (SELECT FROM cronce.run l
              WHERE l.deployment = d.deployment AND l.job = d.job AND l.slot = d.slot AND l.status = 'running') AS running,
      coalesce(d.asked_at > t.long_ago, false) AND NOT EXISTS (
        SELECT FROM cronce.run l
        WHERE l.deployment = d.deployment AND l.job = d.job AND l.slot = d.slot AND l.trigger = 'sweep'
          AND l.received_at >= d.asked_at AND l.id <> d.id) AS expected,
      d.status IN ('failed', 'timed_out', 'lost') AND (d.finished_at >= t.long_ago OR EXISTS (
        SELECT FROM cronce.run l
        WHERE l.deployment = d.deployment AND l.job = d.job AND l.slot = d.slot AND l.id > d.id
          AND l.skip_reason = 'held' AND l.received_at > t.long_ago)) AS patient) s
  WHERE d.deployment = owed.deployment AND d.job = owed.job AND d.final = false AND NOT d.paid
    AND d.status IN ('missed', 'skipped', 'failed', 'timed_out', 'lost')
    AND d.asked_at IS DISTINCT FROM 'infinity' AND d.finished_at >= coalesce(owed.since, '-infinity')
$$;
