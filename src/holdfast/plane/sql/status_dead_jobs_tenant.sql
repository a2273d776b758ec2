-- Contract: the jobs of the newest dead letters of one tenant, without what their users put into them.
SELECT id, tenant, topic, pool, state, attempt, max_attempts, created_ns, updated_ns, version, holdfast_fence, run_fence,
    worker, reason
FROM plane_job WHERE tenant = :tenant
    AND id IN (SELECT job FROM plane_dead_letter WHERE tenant = :tenant ORDER BY at_ns DESC, id DESC LIMIT :most)
