-- Accounts for slots of one job that nobody delivered: `missed`, or `skipped` as `paused` where the job was paused when they
-- were due. Those that its policy wants are owed. Answers the records.
-- p: {deployment, job, lockName, now, whole, catchUp, catchUpLimit, earliest,
--     schedules[{expression, timeZone, start, end, until}], slots[{id, slot, scheduledFor, certain}]}
CREATE OR REPLACE FUNCTION cronce.account(p jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own_deployment text := coalesce(p ->> 'deployment', 'default');
  own_job text := p ->> 'job';
  at   timestamptz := coalesce((p ->> 'now')::timestamptz, clock_timestamp());
  made uuid[];
BEGIN
  PERFORM cronce.demand_durability();
  PERFORM FROM cronce.job j WHERE j.deployment = own_deployment AND j.name = own_job FOR NO KEY UPDATE;
  WITH slots AS (
    SELECT g.id, g.slot, g."scheduledFor" AS due, EXISTS (
        SELECT FROM cronce.pause z WHERE z.deployment = own_deployment AND z.job = own_job
          AND g."scheduledFor" >= z.paused_at
          AND (z.resumed_at IS NULL OR g."scheduledFor" < z.resumed_at)) AS paused
    FROM jsonb_to_recordset(p -> 'slots') g (id uuid, slot text, "scheduledFor" timestamptz)
    WHERE NOT EXISTS ( -- one may have come since the sweep looked
      SELECT FROM cronce.run r WHERE r.deployment = own_deployment AND r.job = own_job AND r.slot = g.slot
        AND r.skip_reason IS DISTINCT FROM 'off_schedule')),
  inserted AS (
    INSERT INTO cronce.run (id, deployment, job, slot, scheduled_for, trigger, status, skip_reason, lock_name,
        received_at, finished_at)
      SELECT s.id, own_deployment, own_job, s.slot, s.due, 'sweep',
        CASE WHEN s.paused THEN 'skipped' ELSE 'missed' END, CASE WHEN s.paused THEN 'paused' END, p ->> 'lockName', at, at
      FROM slots s
      RETURNING id)
  SELECT coalesce(array_agg(x.id), '{}') INTO made FROM inserted x;
  UPDATE cronce.schedule s SET accounted_until = greatest(s.accounted_until, g.until)
    FROM jsonb_to_recordset(p -> 'schedules')
      g (expression text, "timeZone" text, start timestamptz, "end" timestamptz, until timestamptz)
    WHERE s.deployment = own_deployment AND s.job = own_job AND s.expression = g.expression AND s.time_zone = g."timeZone"
      AND s.starts_at = coalesce(g.start, '-infinity') AND s.ends_at = coalesce(g."end", 'infinity');
  PERFORM cronce.grant_catch_up(p, made);
  RETURN (SELECT coalesce(jsonb_agg(cronce.record(r) ORDER BY r.scheduled_for), '[]') FROM cronce.run r WHERE r.id = ANY (made));
END $$;
