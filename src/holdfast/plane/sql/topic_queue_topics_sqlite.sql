-- Contract: of some topics, named by a JSON array, those with jobs of a pool in their queue, and how many jobs of each
-- are with workers. Costs the same for two waiting jobs and for a million, and whatever waits for other topics.
SELECT wanted.value AS topic, (
    SELECT COUNT(*) FROM plane_job AS placed
    WHERE placed.pool = :pool AND placed.topic = wanted.value
        AND placed.state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING') AND placed.queue = 'topic'
) AS running
FROM json_each(:topics) AS wanted
WHERE (
    SELECT 1 FROM plane_job AS waiting
    WHERE waiting.pool = :pool AND waiting.topic = wanted.value AND waiting.state IN ('PENDING', 'RETRYING')
        AND waiting.queue = 'topic' LIMIT 1
) IS NOT NULL
