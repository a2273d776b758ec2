-- Contract: the current counts of some tenants and some pools, named by JSON arrays.
SELECT 'tenant' AS kind, tenant AS name, running, slots AS most FROM plane_tenant
WHERE tenant = ANY (ARRAY(SELECT json_array_elements_text(CAST(:tenants AS json))))
UNION ALL
SELECT 'pool' AS kind, pool AS name, running, NULL AS most FROM plane_pool
WHERE pool = ANY (ARRAY(SELECT json_array_elements_text(CAST(:pools AS json))))
