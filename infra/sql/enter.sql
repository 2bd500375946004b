-- T1: takes the same lock again, waiting, and checks that the run still stands and its fence is the last. T0's commit
-- frees the lock for a moment. A claim that gets it in that moment sees that another is starting and lets it go; should
-- one slip in all the same (a stranger holds the key for long, a clock jumps), it has a higher fence, and the lower gives
-- way. Its looks leave nothing behind: T1 stays free of locks on our tables for as long as the job works.
CREATE OR REPLACE FUNCTION cronce.enter(self uuid) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  mine  cronce.run;
  stood boolean;
BEGIN
  BEGIN
    SELECT r.* INTO mine FROM cronce.run r WHERE r.id = self;
    stood := cronce.stands(self);
    RAISE EXCEPTION USING ERRCODE = 'CR005';
  EXCEPTION WHEN SQLSTATE 'CR005' THEN
    NULL;
  END;
  IF stood THEN
    PERFORM cronce.keep_session(mine.lease_ms);
    PERFORM pg_advisory_xact_lock(mine.guard_key) WHERE mine.guard_key IS NOT NULL;
    PERFORM pg_advisory_xact_lock(mine.lock_key);
    BEGIN
      stood := cronce.stands(self);
      RAISE EXCEPTION USING ERRCODE = 'CR005';
    EXCEPTION WHEN SQLSTATE 'CR005' THEN
      NULL;
    END;
  END IF;
  RETURN jsonb_build_object('entered', coalesce(stood, false), 'pid', pg_backend_pid(),
    'lease', current_setting('idle_in_transaction_session_timeout'));
END $$;
