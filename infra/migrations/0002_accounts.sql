-- compatible
-- What makes each due slot accountable: the schedules as they were known, pauses with who and why, and the functions
-- of the sweep.

CREATE TABLE cronce.schedule (
  job             text NOT NULL,
  expression      text NOT NULL,
  time_zone       text NOT NULL,
  known_since     timestamptz NOT NULL,
  accounted_until timestamptz NOT NULL,
  PRIMARY KEY (job, expression, time_zone),
  CONSTRAINT schedule_accounted_since_known CHECK (accounted_until >= known_since)
);
COMMENT ON TABLE cronce.schedule IS
  'The schedules that are deployed and enabled, each since when, and until when each of its slots is accounted for.';

CREATE TABLE cronce.pause (
  job        text NOT NULL,
  paused_at  timestamptz NOT NULL,
  paused_by  text NOT NULL,
  reason     text,
  resumed_at timestamptz,
  resumed_by text,
  PRIMARY KEY (job, paused_at),
  CONSTRAINT pause_ends_whole CHECK ((resumed_at IS NULL) = (resumed_by IS NULL)),
  CONSTRAINT pause_ends_after_it_began CHECK (resumed_at >= paused_at)
);
CREATE UNIQUE INDEX pause_one_open ON cronce.pause (job) WHERE resumed_at IS NULL;
INSERT INTO cronce.pause (job, paused_at, paused_by, reason)
  SELECT name, paused_at, paused_by, pause_reason FROM cronce.job WHERE paused_at IS NOT NULL;

-- Pausing a paused job and resuming one that runs change nothing. Both answer the job's row.
CREATE FUNCTION cronce.pause_job(name text, by text, reason text, at timestamptz) RETURNS cronce.job
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made cronce.job;
BEGIN
  INSERT INTO cronce.job (name, first_seen_at) VALUES (pause_job.name, coalesce(at, clock_timestamp())) ON CONFLICT DO NOTHING;
  UPDATE cronce.job j SET paused_at = coalesce(at, clock_timestamp()), paused_by = by, pause_reason = reason
    WHERE j.name = pause_job.name AND j.paused_at IS NULL RETURNING j.* INTO made;
  IF FOUND THEN
    INSERT INTO cronce.pause (job, paused_at, paused_by, reason) VALUES (made.name, made.paused_at, by, pause_job.reason);
  ELSE
    SELECT * INTO made FROM cronce.job j WHERE j.name = pause_job.name;
  END IF;
  RETURN made;
END $$;

CREATE FUNCTION cronce.resume_job(name text, by text, at timestamptz) RETURNS cronce.job
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made cronce.job;
BEGIN
  UPDATE cronce.pause p SET resumed_at = greatest(p.paused_at, coalesce(at, clock_timestamp())), resumed_by = by
    WHERE p.job = resume_job.name AND p.resumed_at IS NULL;
  UPDATE cronce.job j SET paused_at = NULL, paused_by = NULL, pause_reason = NULL WHERE j.name = resume_job.name;
  SELECT * INTO made FROM cronce.job j WHERE j.name = resume_job.name;
  RETURN made;
END $$;

-- Makes the known schedules those of `given` ([{job, expression, timeZone}]): new ones are known from `at` on, and owe
-- nothing for the time before; those no longer deployed or disabled are forgotten, and known anew if they come back.
CREATE FUNCTION cronce.know_schedules(given jsonb, at timestamptz) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM cronce.schedule s WHERE NOT EXISTS (
    SELECT FROM jsonb_to_recordset(given) g (job text, expression text, "timeZone" text)
    WHERE g.job = s.job AND g.expression = s.expression AND g."timeZone" = s.time_zone);
  INSERT INTO cronce.schedule (job, expression, time_zone, known_since, accounted_until)
    SELECT g.job, g.expression, g."timeZone", at, at
    FROM jsonb_to_recordset(given) g (job text, expression text, "timeZone" text)
    ON CONFLICT DO NOTHING;
  INSERT INTO cronce.job (name, first_seen_at)
    SELECT DISTINCT g.job, at FROM jsonb_to_recordset(given) g (job text) ON CONFLICT DO NOTHING;
  RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('job', s.job, 'expression', s.expression, 'timeZone', s.time_zone,
      'knownSince', s.known_since, 'accountedUntil', s.accounted_until)), '[]') FROM cronce.schedule s);
END $$;

-- The times of all of a job's slots that anything was ever recorded of, within a span.
CREATE FUNCTION cronce.delivered(job text, since timestamptz, until timestamptz) RETURNS timestamptz[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN ARRAY(SELECT DISTINCT r.scheduled_for FROM cronce.run r
  WHERE r.job = delivered.job AND r.slot NOT LIKE 'manual:%' AND r.scheduled_for BETWEEN since AND until
  ORDER BY r.scheduled_for);

CREATE INDEX run_by_due_time ON cronce.run (job, scheduled_for);

-- Accounts for slots that nobody delivered: `missed`, or `skipped` as `paused` where the job was paused when they were
-- due. Answers the records. p: {job, expression, timeZone, lockName, until, now, published, slots[{slot, scheduledFor}]}
CREATE FUNCTION cronce.account(p jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  at   timestamptz := coalesce((p ->> 'now')::timestamptz, clock_timestamp());
  made cronce.run[];
BEGIN
  WITH slots AS (
    SELECT g.slot, g."scheduledFor" AS due, EXISTS (
        SELECT FROM cronce.pause z WHERE z.job = p ->> 'job' AND g."scheduledFor" >= z.paused_at
          AND (z.resumed_at IS NULL OR g."scheduledFor" < z.resumed_at)) AS paused
    FROM jsonb_to_recordset(p -> 'slots') g (id uuid, slot text, "scheduledFor" timestamptz)),
  ids AS (SELECT g.id, g.slot FROM jsonb_to_recordset(p -> 'slots') g (id uuid, slot text)),
  inserted AS (
    INSERT INTO cronce.run (id, job, slot, scheduled_for, trigger, status, skip_reason, lock_name, received_at,
        finished_at, published_at)
      SELECT i.id, p ->> 'job', s.slot, s.due, 'sweep', CASE WHEN s.paused THEN 'skipped' ELSE 'missed' END,
        CASE WHEN s.paused THEN 'paused' END, p ->> 'lockName', at, at,
        CASE WHEN (p ->> 'published')::boolean THEN clock_timestamp() END
      FROM slots s JOIN ids i USING (slot)
      RETURNING *)
  SELECT coalesce(array_agg(x ORDER BY x.scheduled_for), '{}') INTO made FROM inserted x;
  UPDATE cronce.schedule s SET accounted_until = greatest(s.accounted_until, (p ->> 'until')::timestamptz)
    WHERE s.job = p ->> 'job' AND s.expression = p ->> 'expression' AND s.time_zone = p ->> 'timeZone';
  RETURN (SELECT coalesce(jsonb_agg(cronce.record(r)), '[]') FROM unnest(made) r);
END $$;

-- Settles what dead invocations left behind, and answers the records.
CREATE FUNCTION cronce.settle_orphans(gap_ms integer, most integer, at timestamptz, published boolean) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids    uuid[];
  fences bigint[];
BEGIN
  SELECT array_agg(o.id), array_agg(o.fence) INTO ids, fences FROM cronce.orphans(gap_ms, most) o;
  RETURN (SELECT coalesce(jsonb_agg(cronce.record(s)), '[]') FROM cronce.settle_dead(
    ids, fences, coalesce(at, clock_timestamp()), published, 'its backend no longer holds its lock') s);
END $$;

-- Slots whose last started run went wrong, may be tried again, and got no retry in `patience_ms`: Lambda's own retries
-- come after 1 and 2 minutes, and the deliveries that met a dead holder were told `held` and won't return. None that
-- ended before `since`, the limit of retention: of an old slot the success may be deleted, and the failure kept.
CREATE FUNCTION cronce.abandoned(patience_ms bigint, most integer, at timestamptz, since timestamptz) RETURNS jsonb
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
RETURN (SELECT coalesce(jsonb_agg(cronce.record(a) ORDER BY a.scheduled_for, a.id), '[]') FROM (
  SELECT r.* FROM cronce.run r
  WHERE r.status IN ('lost', 'failed', 'timed_out') AND r.final = false AND r.finished_at >= since
    AND r.finished_at < coalesce(at, clock_timestamp()) - make_interval(secs => patience_ms / 1000.0)
    AND NOT EXISTS (
      SELECT FROM cronce.run l WHERE l.job = r.job AND l.slot = r.slot AND l.id > r.id
        AND (l.skip_reason IS DISTINCT FROM 'held'
             OR l.received_at > coalesce(at, clock_timestamp()) - make_interval(secs => patience_ms / 1000.0)))
  ORDER BY r.scheduled_for, r.id LIMIT most) a);

CREATE INDEX run_unfinished_slots ON cronce.run (finished_at) WHERE final = false;

-- Deletes up to `most` runs that ended before `before`, but keeps the last success and the last failure of each job.
CREATE FUNCTION cronce.prune(before timestamptz, most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone integer;
BEGIN
  WITH kept AS (
    SELECT max(r.id::text)::uuid AS id FROM cronce.run r
      WHERE r.status IN ('succeeded', 'failed', 'timed_out', 'lost') GROUP BY r.job, r.status = 'succeeded')
  DELETE FROM cronce.run WHERE id IN (
    SELECT r.id FROM cronce.run r
    WHERE r.finished_at < before AND r.id NOT IN (SELECT k.id FROM kept k)
      AND NOT EXISTS (SELECT FROM cronce.lock l WHERE l.run_id = r.id)
    ORDER BY r.finished_at LIMIT most);
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;
