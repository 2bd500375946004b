-- compatible
-- What the outbox says of an outcome that it could not deliver, and indexes for a history of any length: no query of a
-- claim, a sweep, a page or the API reads the table as a whole, and pruning touches only what it deletes.

ALTER TABLE cronce.run ADD COLUMN publish_error jsonb;
COMMENT ON COLUMN cronce.run.publish_error IS
  'Why the outcome has not reached every sink yet: {tries, givenUp, failures: [{sink, code, message}]}.';
COMMENT ON COLUMN cronce.run.publish_after IS 'When it is tried next. infinity: given up.';

-- By what became of a delivery, in one word: the last of each kind that a job's history keeps, and each filter of a list.
-- NULLS LAST, though an id is never null: an order that the primary key does not have. Where a kind is rare, a walk down
-- the primary key would read the whole table, and looks cheap to a planner that knows averages only.
CREATE INDEX run_by_outcome ON cronce.run (deployment, job, (coalesce(skip_reason, status)), id DESC NULLS LAST);
DROP INDEX cronce.run_by_job;

-- The slot before the job: a slot is looked for without its job too.
DROP INDEX cronce.run_by_slot;
CREATE INDEX run_by_slot ON cronce.run (deployment, slot, job);

-- A deployment's pruning walks over no other's history.
DROP INDEX cronce.run_old;
CREATE INDEX run_old ON cronce.run (deployment, finished_at) WHERE finished_at IS NOT NULL;
