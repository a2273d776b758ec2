-- Contract: the ids of at most `:most` runs without an idempotency key that ended before `:before_ns`, the first that
-- ended first.
SELECT id FROM plane_run
WHERE status IN ('succeeded', 'failed', 'denied', 'cancelled', 'timed_out') AND idempotency_key IS NULL
    AND updated_ns < :before_ns
ORDER BY updated_ns, id LIMIT :most
