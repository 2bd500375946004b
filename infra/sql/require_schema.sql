-- Code and schema must fit. A migration that is not marked compatible locks out code that was written before it.
CREATE OR REPLACE FUNCTION cronce.require_schema(code_version integer) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  present integer;
  floor   integer;
BEGIN
  SELECT max(version), max(version) FILTER (WHERE breaking) INTO present, floor FROM cronce.migration;
  IF floor > code_version THEN
    RAISE EXCEPTION USING ERRCODE = 'CR001',
      MESSAGE = format('the database has schema version %s, this code knows %s', floor, code_version),
      HINT = 'deploy the newer Cronce';
  ELSIF present < code_version THEN
    RAISE EXCEPTION USING ERRCODE = 'CR002',
      MESSAGE = format('the database has schema version %s, this code needs %s', present, code_version),
      HINT = 'run `npm run migrate`';
  END IF;
END $$;
