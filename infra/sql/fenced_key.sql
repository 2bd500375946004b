-- Each transaction of `fenced` shares this lock of its run; whoever ends the run takes it alone. So none can commit
-- after its run has ended, and all of them can be found. Only this server ever reckons it, and only while a run lasts.
CREATE OR REPLACE FUNCTION cronce.fenced_key(run uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT hashtextextended(run::text, 0)
$$;
