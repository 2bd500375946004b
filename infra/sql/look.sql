-- Whether a run stands, leaving no lock on our tables behind: in T1 it would stay for as long as the job works, an ALTER
-- would queue behind it, and every claim behind that.
CREATE OR REPLACE FUNCTION cronce.look(self uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found boolean;
BEGIN
  found := cronce.stands(self);
  RAISE EXCEPTION USING ERRCODE = 'CR005';
EXCEPTION WHEN SQLSTATE 'CR005' THEN
  RETURN found;
END $$;
