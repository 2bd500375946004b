-- The lock key of a name: the first 8 bytes of SHA-256 over namespace and name, big-endian, signed.
-- src/path/lock.ts derives the same; test/lock-name.test.ts holds both to golden values.
CREATE OR REPLACE FUNCTION cronce.lock_key(namespace text, name text) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
  SELECT ('x' || encode(substr(sha256(convert_to(namespace || ':' || name, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
$$;
