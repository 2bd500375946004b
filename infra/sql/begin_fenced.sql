-- For a transaction of its own beside T1: true while this very run stands; nobody can then end it before that
-- transaction has ended. What it looks at, it looks at in a subtransaction that is rolled back: no lock on our tables.
CREATE OR REPLACE FUNCTION cronce.begin_fenced(self uuid, lease_ms integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM cronce.keep_session(lease_ms);
  PERFORM cronce.demand_durability();
  PERFORM pg_advisory_xact_lock_shared(cronce.fenced_key(self));
  RETURN cronce.look(self);
END $$;
