-- Contract: of the jobs between two places that ended before `:before_ns` and have an idempotency key, keeps what answers
-- a second submission (that it was, and how it ended), forgets what it was about, and returns the ids of those that had
-- something to forget. A label says that it was forgotten: a job that never had anything to say is something else.
UPDATE plane_job SET payload = 'null', result = NULL, labels = '{"holdfast.emptied":"yes"}', version = version + 1
WHERE (created_ns, id) > (:created_ns, :id) AND (created_ns, id) <= (:last_ns, :last_id)
    AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED', 'OUTPUT_QUARANTINED')
    AND updated_ns < :before_ns AND idempotency_key IS NOT NULL AND created_ns >= :keys_before_ns
    AND (
        payload <> 'null' OR (result IS NOT NULL AND result <> 'null')
        OR labels NOT IN ('{}', '{"holdfast.emptied":"yes"}')
    )
RETURNING id
