-- Contract: inserts a job in version 1, or in version 2 if it is dispatched with its submission. A conflicting row is
-- an error; the caller then inserts one job at a time.
INSERT INTO plane_job
    (id, tenant, topic, pool, state, priority, attempt, max_attempts, payload, created_ns, updated_ns, version,
     holdfast_fence, idempotency_key, timeout_ns, deadline_ns, not_before_ns, queue, submitted_by, trace, labels)
VALUES
    (:id, :tenant, :topic, :pool, :state, :priority, :attempt, :max_attempts, :payload, :created_ns, :updated_ns,
     :version, :holdfast_fence, :idempotency_key, :timeout_ns, :deadline_ns, :not_before_ns, :queue, :submitted_by,
     :trace, :labels)
