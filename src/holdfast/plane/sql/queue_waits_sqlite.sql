-- Contract: those of some pools, named by a JSON array, in which a job waits for workers.
SELECT wanted.value AS pool FROM json_each(:pools) AS wanted
WHERE EXISTS (
    SELECT 1 FROM plane_job
    WHERE pool = wanted.value AND state IN ('PENDING', 'RETRYING') AND not_before_ns = 0
)
