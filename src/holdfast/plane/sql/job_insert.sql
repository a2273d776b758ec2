-- Contract: inserts a job in version 1, and returns it; no row: the id, or the idempotency key of the tenant, is taken.
INSERT INTO plane_job
    (id, tenant, topic, pool, state, priority, attempt, max_attempts, payload, created_ns, updated_ns, version,
     idempotency_key, timeout_ns, deadline_ns, not_before_ns, queue, submitted_by, trace, labels)
VALUES
    (:id, :tenant, :topic, :pool, :state, :priority, 0, :max_attempts, :payload, :now_ns, :now_ns, 1,
     :idempotency_key, :timeout_ns, :deadline_ns, :not_before_ns, :queue, :submitted_by, :trace, :labels)
ON CONFLICT DO NOTHING
RETURNING *
