-- Of slots just recorded as missed, those that the job's policy wants are owed from now on. Bounds and order are of the job
-- and the outage: the time between two slots that came by themselves, however many schedules, pages and passes it takes.
-- `all`: the oldest, up to the limit. `one`: the latest. What was granted before and not asked for yet gives way to a later
-- one, and none is asked for while later ones are still to be looked at (not `whole`).
-- None that was due before `earliest`, or whose name is not `certain`. p as of `account`.
CREATE OR REPLACE FUNCTION cronce.grant_catch_up(p jsonb, made uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own_deployment text := coalesce(p ->> 'deployment', 'default');
  own_job  text := p ->> 'job';
  policy   text := coalesce(p ->> 'catchUp', 'skip');
  whole    boolean := coalesce((p ->> 'whole')::boolean, true);
  uncertain uuid[] := ARRAY(SELECT (s ->> 'id')::uuid FROM jsonb_array_elements(p -> 'slots') s WHERE NOT (s ->> 'certain')::boolean);
  first_due timestamptz;
  came     timestamptz[]; -- the bounds of outages
BEGIN
  IF policy IN ('one', 'all') AND cardinality(made) > 0 THEN
    SELECT min(r.scheduled_for) INTO first_due FROM cronce.run r WHERE r.id = ANY (made);
    SELECT r.scheduled_for INTO first_due FROM cronce.run r
      WHERE r.deployment = own_deployment AND r.job = own_job AND r.scheduled_for < first_due AND cronce.came_by_itself(r)
      ORDER BY r.scheduled_for DESC LIMIT 1;
    came := ARRAY(
      SELECT '-infinity'::timestamptz UNION SELECT r.scheduled_for FROM cronce.run r
      WHERE r.deployment = own_deployment AND r.job = own_job AND r.scheduled_for >= coalesce(first_due, '-infinity')
        AND cronce.came_by_itself(r)
      ORDER BY 1);
    WITH granted AS (
      SELECT width_bucket(r.scheduled_for, came) AS outage, count(*) AS n, max(r.scheduled_for) AS last,
        bool_or(r.paid OR (r.asked_at IS NOT NULL AND r.asked_at <> 'infinity')) AS asked
      FROM cronce.run r
      WHERE r.deployment = own_deployment AND r.job = own_job AND r.status = 'missed' AND r.final = false
        AND r.scheduled_for >= coalesce(first_due, '-infinity')
      GROUP BY 1),
    eligible AS (
      SELECT r.id, r.scheduled_for, width_bucket(r.scheduled_for, came) AS outage
      FROM cronce.run r
      WHERE r.id = ANY (made) AND r.status = 'missed' AND r.id <> ALL (uncertain)
        AND r.scheduled_for >= coalesce((p ->> 'earliest')::timestamptz, '-infinity')),
    ranked AS (
      SELECT e.id, e.scheduled_for, g.last, coalesce(g.n, 0) AS before, coalesce(g.asked, false) AS asked,
        row_number() OVER (PARTITION BY e.outage ORDER BY e.scheduled_for) AS from_oldest,
        row_number() OVER (PARTITION BY e.outage ORDER BY e.scheduled_for DESC) AS from_latest
      FROM eligible e LEFT JOIN granted g USING (outage))
    UPDATE cronce.run r SET final = false, asked_at = CASE WHEN policy = 'one' AND NOT whole THEN 'infinity'::timestamptz END
      FROM ranked x WHERE x.id = r.id AND CASE policy
        WHEN 'all' THEN x.before + x.from_oldest <= (p ->> 'catchUpLimit')::integer
        ELSE x.from_latest = 1 AND NOT x.asked AND x.scheduled_for > coalesce(x.last, '-infinity') END;
    UPDATE cronce.run r SET final = NULL, asked_at = NULL
      WHERE policy = 'one' AND r.deployment = own_deployment AND r.job = own_job AND r.status = 'missed'
        AND r.final = false AND NOT r.paid AND (r.asked_at IS NULL OR r.asked_at = 'infinity')
        AND EXISTS (
          SELECT FROM cronce.run l WHERE l.id = ANY (made) AND l.final = false AND l.scheduled_for > r.scheduled_for
            AND width_bucket(l.scheduled_for, came) = width_bucket(r.scheduled_for, came));
  END IF;
  UPDATE cronce.run r SET asked_at = NULL
    WHERE whole AND r.deployment = own_deployment AND r.job = own_job AND r.final = false AND NOT r.paid
      AND r.asked_at = 'infinity';
  UPDATE cronce.job j SET owes = true
    WHERE j.deployment = own_deployment AND j.name = own_job AND NOT j.owes AND EXISTS (
      SELECT FROM cronce.run r
      WHERE r.deployment = own_deployment AND r.job = own_job AND r.final = false AND NOT r.paid);
END $$;
