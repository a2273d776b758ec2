-- Contract: inserts jobs in one statement, each in version 1, or in version 2 if it is dispatched with its submission;
-- `rows` is a JSON array of objects. A conflicting row is an error; the caller then inserts one job at a time.
INSERT INTO plane_job
    (id, tenant, topic, pool, state, priority, attempt, max_attempts, payload, created_ns, updated_ns, version,
     holdfast_fence, idempotency_key, timeout_ns, deadline_ns, not_before_ns, queue, submitted_by, trace, labels)
SELECT
    row.id, row.tenant, row.topic, row.pool, row.state, row.priority, row.attempt, row.max_attempts, row.payload,
    row.created_ns, row.updated_ns, row.version, row.holdfast_fence, row.idempotency_key, row.timeout_ns,
    row.deadline_ns, row.not_before_ns, row.queue, row.submitted_by, row.trace, row.labels
FROM json_to_recordset(CAST(:rows AS json)) AS row (
    id TEXT, tenant TEXT, topic TEXT, pool TEXT, state TEXT, priority BIGINT, attempt BIGINT, max_attempts BIGINT,
    payload TEXT, created_ns BIGINT, updated_ns BIGINT, version BIGINT, holdfast_fence BIGINT, idempotency_key TEXT,
    timeout_ns BIGINT, deadline_ns BIGINT, not_before_ns BIGINT, queue TEXT, submitted_by TEXT, trace TEXT,
    labels TEXT
)
RETURNING 1 AS done
