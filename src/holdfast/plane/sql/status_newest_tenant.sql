-- Contract: the newest jobs of one tenant, without what their users put into them.
SELECT id, tenant, topic, pool, state, attempt, max_attempts, created_ns, updated_ns, version, holdfast_fence, run_fence,
    worker, reason
FROM plane_job WHERE tenant = :tenant ORDER BY created_ns DESC, id DESC LIMIT :most
