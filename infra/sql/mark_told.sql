-- Stamps outcomes whose log line is written, where the log is the only sink. The caller need not wait for it to be
-- durable: should a crash forget it, they are told once more.
CREATE OR REPLACE FUNCTION cronce.mark_told(ids uuid[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  UPDATE cronce.run r SET published_to = '{log}', published_at = clock_timestamp()
  WHERE r.id = ANY (ids) AND r.published_at IS NULL AND r.finished_at IS NOT NULL
$$;
