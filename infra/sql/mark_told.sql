-- Stamps outcomes whose log line is written, where the log is the only sink.
CREATE OR REPLACE FUNCTION cronce.mark_told(ids uuid[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  UPDATE cronce.run r SET published_to = '{log}', published_at = clock_timestamp()
  WHERE r.id = ANY (ids) AND r.published_at IS NULL AND r.finished_at IS NOT NULL
$$;
