-- Contract: makes jobs in version 1, all in one statement; `rows` is a JSON array of objects. A row that is in the way is an
-- error, and the caller asks one by one.
INSERT INTO plane_job
    (id, tenant, topic, pool, state, priority, attempt, max_attempts, payload, created_ns, updated_ns, version,
     idempotency_key, timeout_ns, deadline_ns, not_before_ns, submitted_by, trace, labels)
SELECT
    row.id, row.tenant, row.topic, row.pool, row.state, row.priority, 0, row.max_attempts, row.payload, row.now_ns,
    row.now_ns, 1, row.idempotency_key, row.timeout_ns, row.deadline_ns, row.not_before_ns, row.submitted_by,
    row.trace, row.labels
FROM json_to_recordset(CAST(:rows AS json)) AS row (
    id TEXT, tenant TEXT, topic TEXT, pool TEXT, state TEXT, priority BIGINT, max_attempts BIGINT,
    payload TEXT, now_ns BIGINT, idempotency_key TEXT, timeout_ns BIGINT, deadline_ns BIGINT,
    not_before_ns BIGINT, submitted_by TEXT, trace TEXT, labels TEXT
)
RETURNING 1 AS done
