-- Contract: how many jobs of each tenant wait for workers of each pool, and since when the first of them has been there.
-- Reads the indexes of the queues of pools and topics once.
SELECT pool, tenant, COUNT(*) AS jobs, MIN(created_ns) AS oldest_ns FROM (
    SELECT pool, tenant, created_ns FROM plane_job WHERE state IN ('PENDING', 'RETRYING') AND queue = 'pool'
    UNION ALL
    SELECT pool, tenant, created_ns FROM plane_job WHERE state IN ('PENDING', 'RETRYING') AND queue = 'topic'
) AS waiting
GROUP BY pool, tenant
