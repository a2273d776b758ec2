-- Contract: jobs of all tenants, in outline, newest first, after a place (`:created_ns`, `:id`) in that order.
SELECT id, tenant, topic, pool, state, priority, attempt, max_attempts, created_ns, updated_ns, version, holdfast_fence,
    run_fence, worker, reason, code, idempotency_key, timeout_ns, deadline_ns, not_before_ns, submitted_by, trace, labels
FROM plane_job
WHERE (created_ns, id) < (:created_ns, :id)
    AND (CAST(:state AS TEXT) IS NULL OR state = :state)
ORDER BY created_ns DESC, id DESC LIMIT :most
