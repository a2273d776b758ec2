-- Contract: how many jobs are in each state. Reads every job.
SELECT state, COUNT(*) AS jobs FROM plane_job WHERE CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant GROUP BY state
