-- Contract: some jobs, named by a JSON array of ids, each with the current counts of its tenant and pool.
SELECT job.*, tenant.running AS tenant_running, tenant.slots AS tenant_slots, pool.running AS pool_running
FROM plane_job AS job
LEFT JOIN plane_tenant AS tenant ON tenant.tenant = job.tenant
LEFT JOIN plane_pool AS pool ON pool.pool = job.pool
WHERE job.id = ANY (ARRAY(SELECT json_array_elements_text(CAST(:ids AS json))))
