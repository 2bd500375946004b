-- Says what became of the start that a key was taken for: its event was handed over, or (not `handed`) the key is free to
-- start it again.
CREATE OR REPLACE FUNCTION cronce.settle_key(deployment text, key text, handed boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE cronce.idempotency_key k
    SET handed_at = CASE WHEN handed THEN clock_timestamp() END, taken_at = CASE WHEN handed THEN k.taken_at END
    WHERE k.deployment = settle_key.deployment AND k.key = settle_key.key AND k.handed_at IS NULL;
  RETURN FOUND;
END $$;
