-- Contract: those of some pools, named by a JSON array, in which a job waits for workers.
SELECT wanted.pool FROM json_array_elements_text(CAST(:pools AS json)) AS wanted (pool)
WHERE (
    SELECT 1 FROM plane_job
    WHERE plane_job.pool = wanted.pool AND state IN ('PENDING', 'RETRYING') AND not_before_ns = 0 LIMIT 1
) IS NOT NULL
