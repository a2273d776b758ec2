-- Contract: how many jobs are in each state that is not terminal. Reads only those.
SELECT state, COUNT(*) AS jobs FROM plane_job
WHERE state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
GROUP BY state
