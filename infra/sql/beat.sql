-- What a heartbeat hears: whether its run still stands, as what it stands otherwise, and who wants it to end. Null where
-- that could not be seen. It is asked inside the job's transaction: it raises nothing, and leaves no lock on our tables.
CREATE OR REPLACE FUNCTION cronce.beat(self uuid) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  heard jsonb;
BEGIN
  heard := jsonb_build_object('stands', cronce.stands(beat.self),
    'status', (SELECT r.status FROM cronce.run r WHERE r.id = beat.self),
    'cancelBy', (SELECT r.cancel_requested_by FROM cronce.run r WHERE r.id = beat.self));
  RAISE EXCEPTION USING ERRCODE = 'CR005';
EXCEPTION
  WHEN SQLSTATE 'CR005' THEN RETURN heard;
  WHEN OTHERS THEN RETURN NULL;
END $$;
