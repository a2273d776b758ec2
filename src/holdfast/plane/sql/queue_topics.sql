-- Contract: how many jobs of each topic are with the workers of a pool, and how many of these were handed to them at `:until_ns` or
-- before without being known to have begun. Reads the jobs that are with workers, of which there are as many as slots.
SELECT topic, COUNT(*) AS with_workers,
    SUM(CASE WHEN state = 'DISPATCHED' AND updated_ns <= :until_ns THEN 1 ELSE 0 END) AS unbegun
FROM plane_job
WHERE state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING')
    AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND pool = :pool
GROUP BY topic
