-- Contract: deletes the jobs between two cursors that ended before `:before_ns`, and returns their ids; jobs with an
-- idempotency key only if they were created before `:keys_before_ns`.
DELETE FROM plane_job
WHERE (created_ns, id) > (:created_ns, :id) AND (created_ns, id) <= (:last_ns, :last_id)
    AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED', 'OUTPUT_QUARANTINED')
    AND updated_ns < :before_ns AND (idempotency_key IS NULL OR created_ns < :keys_before_ns)
RETURNING id
