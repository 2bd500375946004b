-- A run as it is told: times in ISO 8601 whatever the session's DateStyle, since jsonb knows no other.
CREATE OR REPLACE FUNCTION cronce.record(r cronce.run) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT jsonb_build_object(
    'id', r.id, 'deployment', r.deployment, 'job', r.job, 'slot', r.slot, 'scheduledFor', r.scheduled_for,
    'slotGuessed', r.slot_guessed, 'trigger', r.trigger, 'deliveryId', r.delivery_id, 'requestedBy', r.requested_by,
    'requestReason', r.request_reason,
    'status', r.status, 'skipReason', r.skip_reason, 'blockedBy', r.blocked_by,
    'blockedByDeployment', r.blocked_by_deployment, 'lockName', r.lock_name, 'lockKey', r.lock_key::text,
    'fence', r.fence::text, 'attempt', r.attempt, 'maxAttempts', r.max_attempts, 'final', r.final,
    'leaseMs', r.lease_ms, 'lockDelayMs', r.lock_delay_ms, 'delayedMs', r.delayed_ms,
    'params', r.params, 'output', r.output, 'error', r.error,
    'receivedAt', r.received_at, 'startedAt', r.started_at, 'finishedAt', r.finished_at,
    'cancelRequestedAt', r.cancel_requested_at, 'cancelRequestedBy', r.cancel_requested_by,
    'publishedAt', r.published_at, 'publishError', r.publish_error)
$$;
