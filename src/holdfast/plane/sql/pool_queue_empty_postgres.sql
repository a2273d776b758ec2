-- Contract: one row for each of some pools, named by a JSON array, in which no job waits for workers. Changes nothing;
-- it is combined with statements that are valid only if no job waits.
SELECT 1 AS done FROM json_array_elements_text(CAST(:pools AS json)) AS wanted (pool)
WHERE (
    SELECT 1 FROM plane_job
    WHERE plane_job.pool = wanted.pool AND state IN ('PENDING', 'RETRYING') AND queue = 'pool' LIMIT 1
) IS NULL
