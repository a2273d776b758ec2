-- Contract: how many jobs of each tenant wait for workers of each pool, and since when the first of them has been there.
-- Goes once through the indexes of those that wait: in line, or for a place of their topic.
SELECT pool, tenant, COUNT(*) AS jobs, MIN(created_ns) AS oldest_ns FROM (
    SELECT pool, tenant, created_ns FROM plane_job WHERE state IN ('PENDING', 'RETRYING') AND queue = 'pool'
    UNION ALL
    SELECT pool, tenant, created_ns FROM plane_job WHERE state IN ('PENDING', 'RETRYING') AND queue = 'topic'
) AS waiting
GROUP BY pool, tenant
