-- sent: [{id, sentTo[], done}]. What is not done is tried again, at growing intervals of up to an hour.
CREATE OR REPLACE FUNCTION cronce.mark_published(sent jsonb) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  UPDATE cronce.run r SET
    published_to = ARRAY(SELECT jsonb_array_elements_text(s.one -> 'sentTo')),
    published_at = CASE WHEN (s.one ->> 'done')::boolean THEN clock_timestamp() END,
    publish_attempts = r.publish_attempts + 1,
    publish_after = clock_timestamp() + least(interval '10 seconds' * 2 ^ least(r.publish_attempts, 10), interval '1 hour')
  FROM jsonb_array_elements(sent) AS s (one)
  WHERE r.id = (s.one ->> 'id')::uuid
$$;
