-- Contract: the topics of which jobs of a pool wait for a place of their topic, and how many jobs of each are with workers.
-- Goes from topic to topic through the index, so it costs the same whether two jobs wait or a million.
WITH RECURSIVE waiting (topic) AS (
    SELECT * FROM (
        SELECT topic FROM plane_job
        WHERE pool = :pool AND state IN ('PENDING', 'RETRYING') AND not_before_ns < 0
        ORDER BY topic LIMIT 1
    ) AS first
    UNION ALL
    SELECT (
        SELECT next.topic FROM plane_job AS next
        WHERE next.pool = :pool AND next.state IN ('PENDING', 'RETRYING') AND next.not_before_ns < 0
            AND next.topic > waiting.topic
        ORDER BY next.topic LIMIT 1
    )
    FROM waiting WHERE waiting.topic IS NOT NULL
)
SELECT waiting.topic, (
    SELECT COUNT(*) FROM plane_job AS placed
    WHERE placed.pool = :pool AND placed.topic = waiting.topic
        AND placed.state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING') AND placed.not_before_ns < 0
) AS running
FROM waiting WHERE waiting.topic IS NOT NULL
