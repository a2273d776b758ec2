-- Contract: the counts of some tenants and some pools, named by JSON arrays, for a transaction that will change them,
-- and whether jobs wait in the queue of the pool. There is one writer.
SELECT 'tenant' AS kind, tenant AS name, running, slots AS most, 0 AS waits FROM plane_tenant
WHERE tenant IN (SELECT value FROM json_each(:tenants))
UNION ALL
SELECT 'pool' AS kind, pool AS name, running, NULL AS most, EXISTS (
    SELECT 1 FROM plane_job
    WHERE plane_job.pool = plane_pool.pool AND state IN ('PENDING', 'RETRYING') AND queue = 'pool'
) AS waits FROM plane_pool
WHERE pool IN (SELECT value FROM json_each(:pools))
