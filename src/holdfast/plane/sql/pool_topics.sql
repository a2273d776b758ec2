-- Contract: how many jobs of each topic are with the workers of a pool, and how many of these were dispatched at
-- `:until_ns` or before and have no recorded start. Reads only jobs with workers, of which there are as many as slots.
SELECT topic, COUNT(*) AS with_workers,
    SUM(CASE WHEN state = 'DISPATCHED' AND updated_ns <= :until_ns THEN 1 ELSE 0 END) AS unbegun
FROM plane_job
WHERE state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING')
    AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND pool = :pool
GROUP BY topic
