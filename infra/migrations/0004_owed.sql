-- compatible
-- Catch-up as a debt on record: which slots are owed, what was asked for, and the windows of schedules.

ALTER TABLE cronce.run
  ADD COLUMN asked_at timestamptz,
  ADD COLUMN paid boolean NOT NULL DEFAULT false,
  ADD CONSTRAINT run_paid_what_was_owed CHECK (NOT paid OR final IS NOT TRUE);
COMMENT ON COLUMN cronce.run.final IS
  'No further attempt follows. False: the slot is owed a run, until one comes to an end for good.';
COMMENT ON COLUMN cronce.run.asked_at IS
  'When a delivery of the owed slot was last asked for. infinity: not to be, since a later slot of the outage may yet be missed.';
COMMENT ON COLUMN cronce.run.paid IS 'Nothing is owed for it any more: its slot has come to an end, or a later run of it stands for it.';

DROP INDEX cronce.run_unfinished_slots;
CREATE INDEX run_owed ON cronce.run (deployment, job, scheduled_for) WHERE final = false AND NOT paid;

ALTER TABLE cronce.job ADD COLUMN owes boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN cronce.job.owes IS
  'A hint for its runs: slots are owed, so the next may be asked for when one ends. The sweep looks for itself.';

-- Two windows of one expression are two schedules. Those of before didn't say theirs: one that has a window is known anew,
-- and what was known without is accounted for no further than it was, since its bounds can't be told.
ALTER TABLE cronce.schedule
  ADD COLUMN starts_at timestamptz NOT NULL DEFAULT '-infinity',
  ADD COLUMN ends_at timestamptz NOT NULL DEFAULT 'infinity',
  DROP CONSTRAINT schedule_pkey,
  ADD PRIMARY KEY (deployment, job, expression, time_zone, starts_at, ends_at);
UPDATE cronce.schedule SET deployed_at = accounted_until;
