-- Accounts for slots that nobody delivered: `missed`, or `skipped` as `paused` where the job was paused when they were
-- due. Answers the records. p: {deployment, job, expression, timeZone, lockName, until, now, slots[{id, slot, scheduledFor}]}
CREATE OR REPLACE FUNCTION cronce.account(p jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own_deployment text := coalesce(p ->> 'deployment', 'default');
  at   timestamptz := coalesce((p ->> 'now')::timestamptz, clock_timestamp());
  made cronce.run[];
BEGIN
  PERFORM cronce.demand_durability();
  WITH slots AS (
    SELECT g.id, g.slot, g."scheduledFor" AS due, EXISTS (
        SELECT FROM cronce.pause z WHERE z.deployment = own_deployment AND z.job = p ->> 'job'
          AND g."scheduledFor" >= z.paused_at
          AND (z.resumed_at IS NULL OR g."scheduledFor" < z.resumed_at)) AS paused
    FROM jsonb_to_recordset(p -> 'slots') g (id uuid, slot text, "scheduledFor" timestamptz)),
  inserted AS (
    INSERT INTO cronce.run (id, deployment, job, slot, scheduled_for, trigger, status, skip_reason, lock_name,
        received_at, finished_at)
      SELECT s.id, own_deployment, p ->> 'job', s.slot, s.due, 'sweep',
        CASE WHEN s.paused THEN 'skipped' ELSE 'missed' END, CASE WHEN s.paused THEN 'paused' END, p ->> 'lockName', at, at
      FROM slots s
      RETURNING *)
  SELECT coalesce(array_agg(x ORDER BY x.scheduled_for), '{}') INTO made FROM inserted x;
  UPDATE cronce.schedule s SET accounted_until = greatest(s.accounted_until, (p ->> 'until')::timestamptz)
    WHERE s.deployment = own_deployment AND s.job = p ->> 'job' AND s.expression = p ->> 'expression'
      AND s.time_zone = p ->> 'timeZone';
  RETURN (SELECT coalesce(jsonb_agg(cronce.record(r)), '[]') FROM unnest(made) r);
END $$;
