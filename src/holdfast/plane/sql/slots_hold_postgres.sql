-- Contract: the counts of some tenants and some pools, named by JSON arrays, locked until the transaction ends: first
-- the tenants, then the pools (the parts of a UNION ALL are read in order), each in the order of their names. Also
-- whether jobs wait in the queue of the pool.
WITH held_tenant AS MATERIALIZED (
    SELECT tenant AS name, running, slots FROM plane_tenant
    WHERE tenant = ANY (ARRAY(SELECT json_array_elements_text(CAST(:tenants AS json))))
    ORDER BY tenant FOR UPDATE
), held_pool AS MATERIALIZED (
    SELECT pool AS name, running FROM plane_pool
    WHERE pool = ANY (ARRAY(SELECT json_array_elements_text(CAST(:pools AS json))))
    ORDER BY pool FOR UPDATE
)
SELECT 'tenant' AS kind, name, running, slots AS most, FALSE AS waits FROM held_tenant
UNION ALL
SELECT 'pool' AS kind, name, running, NULL AS most, (
    SELECT 1 FROM plane_job
    WHERE plane_job.pool = held_pool.name AND state IN ('PENDING', 'RETRYING') AND queue = 'pool' LIMIT 1
) IS NOT NULL AS waits FROM held_pool
