-- Contract: jobs in one of the states that are not over, latest change first, without what their users put into them.
-- Reads the live ones.
SELECT id, tenant, topic, pool, state, attempt, max_attempts, created_ns, updated_ns, version, holdfast_fence, run_fence,
    worker, reason
FROM plane_job
WHERE state = :state AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant)
ORDER BY updated_ns DESC, id DESC LIMIT :most
