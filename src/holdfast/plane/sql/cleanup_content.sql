-- Contract: deletes the content of the jobs between two cursors that ended before `:before_ns` and have an idempotency
-- key. Keeps what a repeated submission needs: that the job existed, and how it ended. Returns the ids of those that
-- had content. A label marks them, because a job without content is something else.
UPDATE plane_job SET payload = 'null', result = NULL, labels = '{"holdfast.emptied":"yes"}', version = version + 1
WHERE (created_ns, id) > (:created_ns, :id) AND (created_ns, id) <= (:last_ns, :last_id)
    AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED', 'OUTPUT_QUARANTINED')
    AND updated_ns < :before_ns AND idempotency_key IS NOT NULL AND created_ns >= :keys_before_ns
    AND (
        payload <> 'null' OR (result IS NOT NULL AND result <> 'null')
        OR labels NOT IN ('{}', '{"holdfast.emptied":"yes"}')
    )
RETURNING id
