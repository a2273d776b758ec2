-- Contract: how many jobs run on each worker. Reads only running jobs.
SELECT worker, COUNT(*) AS jobs FROM plane_job
WHERE state = 'RUNNING' AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND worker IS NOT NULL
GROUP BY worker
