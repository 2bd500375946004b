-- Takes an idempotency key for a request whose run is to be started, and says how that stands: `taken`, so the caller
-- starts it; `starting`, so another is about to; `started`; or `other`, where the key stands for another request. p:
-- {schema, deployment, key, job, fingerprint, scheduledFor, params, patienceMs, lostAfterMs, before}. Whoever took it and
-- did not say in `patienceMs` what became of it is gone; an event of which there is no run after `lostAfterMs` is lost.
-- Keys that were first used before `before` are forgotten, some at a time.
CREATE OR REPLACE FUNCTION cronce.take_key(p jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own_deployment text := p ->> 'deployment';
  own_job  text := p ->> 'job';
  own_slot text := 'manual:' || (p ->> 'key');
  is_new   boolean;
  found_params jsonb;
  has_run  boolean;
  known    cronce.idempotency_key;
  at       timestamptz;
BEGIN
  PERFORM cronce.require_schema((p ->> 'schema')::integer);
  PERFORM cronce.demand_durability();
  DELETE FROM cronce.idempotency_key WHERE (deployment, key) IN (
    SELECT k.deployment, k.key FROM cronce.idempotency_key k
    WHERE k.deployment = own_deployment AND k.first_used_at < (p ->> 'before')::timestamptz
    ORDER BY k.first_used_at LIMIT 20 FOR UPDATE SKIP LOCKED);
  INSERT INTO cronce.idempotency_key AS k (deployment, key, job, fingerprint, scheduled_for, taken_at)
    VALUES (own_deployment, p ->> 'key', own_job, p ->> 'fingerprint', (p ->> 'scheduledFor')::timestamptz, clock_timestamp())
    ON CONFLICT DO NOTHING RETURNING k.* INTO known;
  is_new := FOUND;
  IF NOT is_new THEN
    SELECT k.* INTO known FROM cronce.idempotency_key k
      WHERE k.deployment = own_deployment AND k.key = p ->> 'key' FOR UPDATE;
  END IF;
  IF known.fingerprint IS DISTINCT FROM p ->> 'fingerprint' THEN
    RETURN jsonb_build_object('state', 'other');
  END IF;
  -- In the waiting for the row, time has passed.
  at := clock_timestamp();
  SELECT r.params, true INTO found_params, has_run FROM cronce.run r
    WHERE r.deployment = own_deployment AND r.job = own_job AND r.slot = own_slot ORDER BY r.id LIMIT 1;
  IF has_run THEN
    IF is_new AND found_params IS DISTINCT FROM p -> 'params' THEN -- a run of before there were keys, or of none
      DELETE FROM cronce.idempotency_key k WHERE k.deployment = own_deployment AND k.key = p ->> 'key';
      RETURN jsonb_build_object('state', 'other');
    END IF;
    RETURN jsonb_build_object('state', 'started');
  END IF;
  IF NOT is_new THEN
    IF known.handed_at > at - make_interval(secs => (p ->> 'lostAfterMs')::numeric / 1000) THEN
      RETURN jsonb_build_object('state', 'started');
    ELSIF known.taken_at > at - make_interval(secs => (p ->> 'patienceMs')::numeric / 1000) THEN
      RETURN jsonb_build_object('state', 'starting');
    END IF;
    UPDATE cronce.idempotency_key k SET taken_at = at, handed_at = NULL WHERE k.deployment = own_deployment AND k.key = p ->> 'key';
  END IF;
  RETURN jsonb_build_object('state', 'taken', 'scheduledFor', known.scheduled_for);
END $$;
