-- Ends the backend that still holds a settled run's lock: a statement nobody waits for, a socket nobody reads.
-- Exact, also behind a pooler that gave the backend to another: the caller has the run's row, so its holder can't finish,
-- and whoever succeeds it must settle it first, for which it needs that row. Both of its locks must be there.
CREATE OR REPLACE FUNCTION cronce.end_holder(r cronce.run) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN r.backend_pid <> pg_backend_pid()
    AND EXISTS (SELECT FROM cronce.lock l WHERE l.key = r.lock_key AND l.fence = r.fence AND l.run_id = r.id)
    AND cronce.holds(r.backend_pid, r.lock_key)
    AND (r.guard_key IS NULL OR cronce.holds(r.backend_pid, r.guard_key))
    AND pg_terminate_backend(r.backend_pid);
EXCEPTION WHEN insufficient_privilege THEN
  RETURN false; -- another role's session: the lease will end it
END $$;
