-- Contract: jobs of one state that wait in a queue, longest unchanged first, without what their users put into them. Reads as many
-- as it returns, and those that wait for a time before them.
SELECT id, tenant, topic, pool, state, queue, updated_ns FROM plane_job
WHERE state = :state AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND queue <> 'delayed'
ORDER BY updated_ns, id LIMIT :most
