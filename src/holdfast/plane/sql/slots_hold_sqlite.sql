-- Contract: what is counted of some tenants and some pools, named by JSON arrays, for a transaction that is going to count. There
-- is one writer.
SELECT 'tenant' AS kind, tenant AS name, running, slots AS most FROM plane_tenant
WHERE tenant IN (SELECT value FROM json_each(:tenants))
UNION ALL
SELECT 'pool' AS kind, pool AS name, running, NULL AS most FROM plane_pool
WHERE pool IN (SELECT value FROM json_each(:pools))
