-- Makes the known schedules of a deployment those of `given` ([{job, expression, timeZone, start, end}]): new ones are known
-- from `at` on, and owe nothing for the time before. Those no longer given are answered still, as gone, until
-- `forget_schedule`: the slots that fell due while they were deployed are yet to be accounted for. Two windows of one
-- expression are two schedules; null is no bound.
CREATE OR REPLACE FUNCTION cronce.know_schedules(given jsonb, at timestamptz, deployment text DEFAULT 'default') RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO cronce.schedule AS s (deployment, job, expression, time_zone, starts_at, ends_at, known_since,
      accounted_until, deployed_at)
    SELECT DISTINCT know_schedules.deployment, g.job, g.expression, g."timeZone", coalesce(g.start, '-infinity'),
      coalesce(g."end", 'infinity'), at, at, at
    FROM jsonb_to_recordset(given) g (job text, expression text, "timeZone" text, start timestamptz, "end" timestamptz)
    ON CONFLICT ON CONSTRAINT schedule_pkey DO UPDATE SET deployed_at = greatest(s.deployed_at, excluded.deployed_at);
  INSERT INTO cronce.job (deployment, name, first_seen_at)
    SELECT DISTINCT know_schedules.deployment, g.job, at FROM jsonb_to_recordset(given) g (job text) ON CONFLICT DO NOTHING;
  RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('job', s.job, 'expression', s.expression, 'timeZone', s.time_zone,
      'start', nullif(s.starts_at, '-infinity'), 'end', nullif(s.ends_at, 'infinity'),
      'knownSince', s.known_since, 'accountedUntil', s.accounted_until, 'deployedAt', s.deployed_at,
      'gone', NOT EXISTS (
        SELECT FROM jsonb_to_recordset(given) g (job text, expression text, "timeZone" text, start timestamptz, "end" timestamptz)
        WHERE g.job = s.job AND g.expression = s.expression AND g."timeZone" = s.time_zone
          AND coalesce(g.start, '-infinity') = s.starts_at AND coalesce(g."end", 'infinity') = s.ends_at))
      ORDER BY s.job, s.expression, s.time_zone, s.starts_at, s.ends_at), '[]')
    FROM cronce.schedule s WHERE s.deployment = know_schedules.deployment);
END $$;
