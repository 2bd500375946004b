-- Records a delivery that could not get through its claim (a lock of someone else's on our rows, a lock that changed
-- hands too often): it did not run, and is owed. Takes no lock that a claim might have failed by. p as of `claim`.
CREATE OR REPLACE FUNCTION cronce.turn_away(p jsonb, why text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  self uuid := (p #>> '{run,id}')::uuid;
  made cronce.run;
  standing boolean := EXISTS (SELECT FROM cronce.run r WHERE r.id = self);
  keys bigint[] := ARRAY(SELECT k::bigint FROM jsonb_array_elements_text(p #> '{lock,keys}') k);
BEGIN
  PERFORM cronce.demand_durability();
  made := cronce.skip_run(p, coalesce((p ->> 'now')::timestamptz, clock_timestamp()), NULL, 'held',
    (SELECT r.id FROM cronce.run r WHERE r.id <> self AND r.lock_key = ANY (keys)
       AND (r.status = 'running' OR r.delay_until IS NOT NULL) ORDER BY r.status = 'running' DESC, r.id DESC LIMIT 1),
    true, standing);
  UPDATE cronce.run r SET error = jsonb_build_object('name', 'NotClaimed', 'message', why)
    WHERE r.id = self AND r.status = 'skipped' RETURNING r.* INTO made;
  IF NOT FOUND THEN -- someone settled it meanwhile (a cancel): its outcome stands, its work never began
    UPDATE cronce.run r SET delay_until = NULL WHERE r.id = self RETURNING r.* INTO made;
  END IF;
  RETURN cronce.record(made);
END $$;
