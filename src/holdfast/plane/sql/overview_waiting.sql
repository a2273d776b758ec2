-- Contract: outlines of jobs in one state that wait in a queue, longest unchanged first. Reads as many as it returns,
-- and the delayed ones before them.
SELECT id, tenant, topic, pool, state, queue, updated_ns FROM plane_job
WHERE state = :state AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND queue <> 'delayed'
ORDER BY updated_ns, id LIMIT :most
