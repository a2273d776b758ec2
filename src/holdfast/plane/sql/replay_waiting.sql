-- Contract: jobs in a state that is not over, unchanged since `:until_ns`, oldest change first, after a place in that
-- order; without those that wait for a time.
SELECT id, tenant, topic, pool, attempt, updated_ns, timeout_ns, run_fence FROM plane_job
WHERE state = :state AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND (updated_ns, id) > (:updated_ns, :id) AND updated_ns <= :until_ns
    AND (queue <> 'delayed' OR state NOT IN ('PENDING', 'RETRYING'))
ORDER BY updated_ns, id LIMIT :most
