-- Contract: unfinished jobs, unchanged since `:until_ns`, oldest change first, after a cursor; without delayed ones.
SELECT id, tenant, topic, pool, attempt, updated_ns, timeout_ns, run_fence FROM plane_job
WHERE state = :state AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND (updated_ns, id) > (:updated_ns, :id) AND updated_ns <= :until_ns
    AND (queue <> 'delayed' OR state NOT IN ('PENDING', 'RETRYING'))
ORDER BY updated_ns, id LIMIT :most
