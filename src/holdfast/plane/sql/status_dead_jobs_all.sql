-- Contract: the jobs of the newest dead letters of all tenants, without what their users put into them.
SELECT id, tenant, topic, pool, state, attempt, max_attempts, created_ns, updated_ns, version, holdfast_fence, run_fence,
    worker, reason
FROM plane_job WHERE id IN (SELECT job FROM plane_dead_letter ORDER BY at_ns DESC, id DESC LIMIT :most)
