-- Contract: the first jobs of a tenant in the queue of a pool: by priority, then by age.
SELECT id FROM plane_job
WHERE pool = :pool AND state IN ('PENDING', 'RETRYING') AND queue = 'pool' AND tenant = :tenant
ORDER BY priority DESC, created_ns, id LIMIT :most
