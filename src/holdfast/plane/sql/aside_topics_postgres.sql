-- Contract: of some topics, named by a JSON array, those of which jobs of a pool wait for a slot of their topic, and how many jobs of
-- each are with workers. Costs the same whether two jobs wait or a million, and whatever waits for other topics.
SELECT wanted.topic, (
    SELECT COUNT(*) FROM plane_job AS placed
    WHERE placed.pool = :pool AND placed.topic = wanted.topic
        AND placed.state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING') AND placed.queue = 'topic'
) AS running
FROM json_array_elements_text(CAST(:topics AS json)) AS wanted (topic)
WHERE (
    SELECT 1 FROM plane_job AS waiting
    WHERE waiting.pool = :pool AND waiting.topic = wanted.topic AND waiting.state IN ('PENDING', 'RETRYING')
        AND waiting.queue = 'topic' LIMIT 1
) IS NOT NULL
