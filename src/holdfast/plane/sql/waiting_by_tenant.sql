-- Contract: how many jobs of each tenant wait for workers of each pool, and since when the first of them has been there.
-- Goes once through the index of those that wait.
SELECT pool, tenant, COUNT(*) AS jobs, MIN(created_ns) AS oldest_ns FROM plane_job
WHERE state IN ('PENDING', 'RETRYING') AND not_before_ns = 0
GROUP BY pool, tenant
