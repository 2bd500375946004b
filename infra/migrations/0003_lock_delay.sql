-- Lock delay, fences that belong to a run, several deployments in one database, and slots that are owed another
-- delivery. The functions are no longer part of a migration: infra/sql/ has them, one a file, laid anew when changed.

-- Rows of before belong to the deployment that migrates (CRONCE_DEPLOYMENT).
DO $$
DECLARE
  deployment text := coalesce(nullif(current_setting('cronce.deployment', true), ''), 'default');
BEGIN
  EXECUTE format('ALTER TABLE cronce.run ADD COLUMN deployment text NOT NULL DEFAULT %L', deployment);
  EXECUTE format('ALTER TABLE cronce.job ADD COLUMN deployment text NOT NULL DEFAULT %L', deployment);
  EXECUTE format('ALTER TABLE cronce.schedule ADD COLUMN deployment text NOT NULL DEFAULT %L', deployment);
  EXECUTE format('ALTER TABLE cronce.pause ADD COLUMN deployment text NOT NULL DEFAULT %L', deployment);
END $$;
ALTER TABLE cronce.run ALTER COLUMN deployment SET DEFAULT 'default';
ALTER TABLE cronce.job ALTER COLUMN deployment SET DEFAULT 'default';
ALTER TABLE cronce.schedule ALTER COLUMN deployment SET DEFAULT 'default';
ALTER TABLE cronce.pause ALTER COLUMN deployment SET DEFAULT 'default';

ALTER TABLE cronce.job DROP CONSTRAINT job_pkey, ADD PRIMARY KEY (deployment, name);
ALTER TABLE cronce.schedule DROP CONSTRAINT schedule_pkey, ADD PRIMARY KEY (deployment, job, expression, time_zone);
ALTER TABLE cronce.pause DROP CONSTRAINT pause_pkey, ADD PRIMARY KEY (deployment, job, paused_at);
DROP INDEX cronce.pause_one_open;
CREATE UNIQUE INDEX pause_one_open ON cronce.pause (deployment, job) WHERE resumed_at IS NULL;

ALTER TABLE cronce.schedule ADD COLUMN deployed_at timestamptz;
UPDATE cronce.schedule SET deployed_at = accounted_until;
ALTER TABLE cronce.schedule ALTER COLUMN deployed_at SET NOT NULL;
COMMENT ON COLUMN cronce.schedule.deployed_at IS 'When a sweep last saw it deployed: until then its slots are owed for sure.';

ALTER TABLE cronce.run
  ADD COLUMN lock_delay_ms integer,
  ADD COLUMN delayed_ms integer,
  ADD COLUMN delay_until timestamptz,
  ADD COLUMN blocked_by_deployment text,
  DROP CONSTRAINT run_skip_reason_known,
  ADD CONSTRAINT run_skip_reason_known CHECK
    (skip_reason IN ('held', 'duplicate', 'paused', 'too_late', 'on_hold', 'off_schedule')),
  ADD CONSTRAINT run_delays_once_over CHECK (delay_until IS NULL OR status <> 'running');
UPDATE cronce.run SET lock_delay_ms = lease_ms WHERE status = 'running';
COMMENT ON COLUMN cronce.run.lock_delay_ms IS
  'How long the next run of this lock waits before its work, where this one did not end by itself.';
COMMENT ON COLUMN cronce.run.delayed_ms IS 'How long this run waited before its work, for one that had not ended by itself.';
COMMENT ON COLUMN cronce.run.delay_until IS
  'Set where the run did not end by its own hand: until then its work may still go on. infinity: its lock was not found free yet.';
COMMENT ON COLUMN cronce.run.final IS
  'No further attempt follows. False for a skip: the delivery was given up for want of time, and is owed.';

-- A start record of before has no guard; its own slot's guard is what a successor takes.
DROP INDEX cronce.run_one_success_per_slot, cronce.run_by_slot, cronce.run_by_job, cronce.run_by_due_time,
  cronce.run_unfinished_by_lock, cronce.run_unfinished_by_guard, cronce.run_unpublished, cronce.run_unfinished_slots;
CREATE UNIQUE INDEX run_one_success_per_slot ON cronce.run (deployment, job, slot) WHERE status = 'succeeded';
CREATE INDEX run_by_slot ON cronce.run (deployment, job, slot);
CREATE INDEX run_by_job ON cronce.run (deployment, job, id DESC);
CREATE INDEX run_by_due_time ON cronce.run (deployment, job, scheduled_for);
CREATE INDEX run_standing_by_lock ON cronce.run (lock_key) WHERE status = 'running' OR delay_until IS NOT NULL;
CREATE INDEX run_standing_by_guard ON cronce.run (guard_key) WHERE status = 'running' OR delay_until IS NOT NULL;
CREATE INDEX run_unpublished ON cronce.run (deployment, publish_after) WHERE published_at IS NULL AND finished_at IS NOT NULL;
CREATE INDEX run_unfinished_slots ON cronce.run (deployment, finished_at) WHERE final = false;
CREATE INDEX run_guessed ON cronce.run (deployment, delivery_id) WHERE slot_guessed;

-- The lock of one slot (`overlap: allow`) is forgotten with the slot; any other keeps its fence for ever.
ALTER TABLE cronce.lock ADD COLUMN of_slot boolean NOT NULL DEFAULT false;
CREATE INDEX lock_of_slot ON cronce.lock (run_id) WHERE of_slot;

-- A job's own lock, and the guards of its slots, are named after its deployment too from here on. Their fences go on under
-- the new names. So does what stands as running: a run of before, if only about to enter, is in the way of the next.
DO $$
DECLARE
  ours text := coalesce(nullif(current_setting('cronce.deployment', true), ''), 'default');
BEGIN
  IF ours = 'default' THEN
    RETURN;
  END IF;
  WITH own AS (
    SELECT j.name || CASE WHEN k > 0 THEN '#' || k ELSE '' END AS name FROM cronce.job j, generate_series(0, 99) k
    UNION SELECT l.name FROM cronce.lock l JOIN cronce.job j ON starts_with(l.name, j.name || '@')),
  renamed AS (
    SELECT cronce.lock_key('cronce', o.name) AS key, cronce.lock_key('cronce', ours || '/' || o.name) AS new_key FROM own o),
  moved AS (
    UPDATE cronce.run r SET lock_name = ours || '/' || r.lock_name, lock_key = n.new_key FROM renamed n
      WHERE r.status = 'running' AND r.lock_key = n.key)
  INSERT INTO cronce.lock (key, name, fence, run_id, of_slot)
    SELECT n.new_key, ours || '/' || l.name, l.fence, l.run_id, position('@' IN l.name) > 0
    FROM renamed n JOIN cronce.lock l ON l.key = n.key
    ON CONFLICT DO NOTHING;
  UPDATE cronce.run r SET guard_key = cronce.lock_key('cronce', ours || '/' || r.job || '@' || r.slot)
    WHERE r.status = 'running' AND r.guard_key IS NOT NULL;
END $$;

-- Each failover begins a new timeline. Runs under one that a lossy failover forgot are still waited for, and fences grow.
CREATE TABLE cronce.timeline (
  id            integer PRIMARY KEY,
  first_seen_at timestamptz NOT NULL
);
COMMENT ON TABLE cronce.timeline IS 'The server''s timelines under which anything was claimed, and since when.';

DO $$
BEGIN
  INSERT INTO cronce.timeline VALUES (
    ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::integer, '-infinity');
EXCEPTION WHEN OTHERS THEN
  INSERT INTO cronce.timeline VALUES (1, '-infinity'); -- a platform that doesn't show it
END $$;

CREATE TABLE cronce.laid (
  one  boolean PRIMARY KEY DEFAULT true CHECK (one),
  hash text NOT NULL,
  at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE cronce.laid IS 'Which functions (infra/sql) are in place.';

DROP FUNCTION cronce.abandoned, cronce.account, cronce.claim, cronce.delivered, cronce.demand_durability,
  cronce.demand_fence, cronce.end_holder, cronce.enter, cronce.finish, cronce.holder_of, cronce.holds,
  cronce.is_backend, cronce.is_starting, cronce.know_schedules, cronce.lock_key, cronce.mark_published,
  cronce.orphans, cronce.pause_job, cronce.prune, cronce.record, cronce.refusal, cronce.request_cancel,
  cronce.request_replace, cronce.require_schema, cronce.rest_after_restart, cronce.resume_job,
  cronce.server_started_at, cronce.settle, cronce.settle_dead, cronce.settle_orphans, cronce.stands,
  cronce.take_one, cronce.take_unpublished, cronce.wait_for_one, cronce.watch;
