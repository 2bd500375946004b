-- compatible
-- Runs by hand: whose key stands for which request, and why a run was asked for.

CREATE TABLE cronce.idempotency_key (
  deployment    text NOT NULL,
  key           text NOT NULL,
  job           text NOT NULL,
  fingerprint   text NOT NULL,
  scheduled_for timestamptz NOT NULL,
  first_used_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  taken_at      timestamptz,
  handed_at     timestamptz,
  PRIMARY KEY (deployment, key)
);
COMMENT ON TABLE cronce.idempotency_key IS
  'Which request an Idempotency-Key stands for, written before its run is handed to the job''s function.';
COMMENT ON COLUMN cronce.idempotency_key.fingerprint IS 'SHA-256 of what was asked for: the same key may ask for nothing else.';
COMMENT ON COLUMN cronce.idempotency_key.scheduled_for IS 'As it was first asked for; a start that has to be made again has the same.';
COMMENT ON COLUMN cronce.idempotency_key.taken_at IS 'Since when a request is starting its run; null where that failed.';
COMMENT ON COLUMN cronce.idempotency_key.handed_at IS 'When Lambda took the run''s event.';
CREATE INDEX idempotency_key_by_age ON cronce.idempotency_key (deployment, first_used_at);

ALTER TABLE cronce.run ADD COLUMN request_reason text;
COMMENT ON COLUMN cronce.run.request_reason IS 'Of a run by hand: why, in the words of whoever asked.';
