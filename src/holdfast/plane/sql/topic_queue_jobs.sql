-- Contract: the first jobs of a tenant in the queue of a topic: by priority, then by age.
SELECT id, priority, created_ns FROM plane_job
WHERE pool = :pool AND topic = :topic AND state IN ('PENDING', 'RETRYING') AND queue = 'topic' AND tenant = :tenant
ORDER BY priority DESC, created_ns, id LIMIT :most
