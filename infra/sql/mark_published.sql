-- sent: [{id, sentTo[], done, givenUp, error}]. What is not done is tried again, at growing intervals of up to an hour,
-- unless it is given up; `error` says why it is not.
CREATE OR REPLACE FUNCTION cronce.mark_published(sent jsonb) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  UPDATE cronce.run r SET
    published_to = ARRAY(SELECT jsonb_array_elements_text(s.one -> 'sentTo')),
    published_at = CASE WHEN (s.one ->> 'done')::boolean THEN clock_timestamp() END,
    publish_attempts = r.publish_attempts + 1,
    publish_error = nullif(s.one -> 'error', 'null'),
    publish_after = CASE WHEN (s.one ->> 'givenUp')::boolean THEN 'infinity'
      ELSE clock_timestamp() + least(interval '10 seconds' * 2 ^ least(r.publish_attempts, 10), interval '1 hour') END
  FROM jsonb_array_elements(sent) AS s (one)
  WHERE r.id = (s.one ->> 'id')::uuid
$$;
