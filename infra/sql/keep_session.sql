-- What keeps a transaction in the hands of a living client, and in nobody else's, until it ends. The server's own TCP
-- limits may be shorter than a lease: they would end a session that its holder still vouches for. A killed client's
-- socket closes at once, but a backend in mid-statement would notice only at its end: hence the check.
CREATE OR REPLACE FUNCTION cronce.keep_session(lease_ms integer, can_look boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  seconds integer := greatest(1, ceil(lease_ms / 1000.0));
BEGIN
  PERFORM set_config('tcp_keepalives_idle', seconds::text, true),
    set_config('tcp_keepalives_interval', greatest(1, seconds / 3)::text, true),
    set_config('tcp_keepalives_count', '3', true),
    set_config('tcp_user_timeout', (seconds * 1000)::text, true),
    set_config('client_connection_check_interval', CASE WHEN can_look THEN '500ms' ELSE '0' END, true);
EXCEPTION WHEN OTHERS THEN
  IF can_look THEN -- a platform that can't; then the statement's end or its time limit frees the lock
    PERFORM cronce.keep_session(lease_ms, false);
  END IF;
END $$;
