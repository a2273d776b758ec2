-- Contract: how many jobs of a topic with a limit of its own are with the workers of a pool, and whether (1) others
-- wait for a slot of the topic. Uses only the indexes of such jobs.
SELECT (
    SELECT COUNT(*) FROM plane_job
    WHERE pool = :pool AND topic = :topic AND state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING') AND queue = 'topic'
) AS running, (
    SELECT COUNT(*) FROM (
        SELECT 1 FROM plane_job
        WHERE pool = :pool AND topic = :topic AND state IN ('PENDING', 'RETRYING') AND queue = 'topic' LIMIT 1
    ) AS first
) AS waiting
