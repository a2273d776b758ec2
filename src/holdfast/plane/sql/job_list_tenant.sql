-- Contract: jobs of one tenant, in outline, newest first, after a place (`:created_ns`, `:id`) in that order.
-- The tenant is bounded from both sides, as the topic in `job_list_topic` is.
SELECT id, tenant, topic, pool, state, priority, attempt, max_attempts, created_ns, updated_ns, version, holdfast_fence,
    run_fence, worker, reason, code, idempotency_key, timeout_ns, deadline_ns, not_before_ns, submitted_by, trace, labels
FROM plane_job
WHERE tenant >= :tenant AND (tenant, created_ns, id) < (:tenant, :created_ns, :id)
    AND (CAST(:state AS TEXT) IS NULL OR state = :state)
ORDER BY tenant DESC, created_ns DESC, id DESC LIMIT :most
