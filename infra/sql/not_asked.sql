-- Takes back that a slot was asked for, where its delivery could not be handed over: whoever comes next asks again.
CREATE OR REPLACE FUNCTION cronce.not_asked(debt uuid) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  UPDATE cronce.run r SET asked_at = NULL WHERE r.id = debt
$$;
