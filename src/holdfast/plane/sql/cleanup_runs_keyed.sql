-- Contract: the ids of at most `:most` runs with an idempotency key that ended before `:before_ns` and were made before
-- `:keys_before_ns`, the oldest first.
SELECT id FROM plane_run
WHERE status IN ('succeeded', 'failed', 'denied', 'cancelled', 'timed_out') AND idempotency_key IS NOT NULL
    AND created_ns < :keys_before_ns AND updated_ns < :before_ns
ORDER BY created_ns, id LIMIT :most
