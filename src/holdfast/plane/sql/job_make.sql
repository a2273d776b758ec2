-- Contract: makes a job, in version 1, or in version 2 if it is with workers from the beginning; a row that is in the way is an
-- error, and the caller asks one by one.
INSERT INTO plane_job
    (id, tenant, topic, pool, state, priority, attempt, max_attempts, payload, created_ns, updated_ns, version,
     holdfast_fence, idempotency_key, timeout_ns, deadline_ns, not_before_ns, queue, submitted_by, trace, labels)
VALUES
    (:id, :tenant, :topic, :pool, :state, :priority, :attempt, :max_attempts, :payload, :created_ns, :updated_ns,
     :version, :holdfast_fence, :idempotency_key, :timeout_ns, :deadline_ns, :not_before_ns, :queue, :submitted_by,
     :trace, :labels)
