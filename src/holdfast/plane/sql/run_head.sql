-- Contract: one run without its document and outline.
SELECT id, tenant, scope, workflow, workflow_version, status, risk, created_ns, updated_ns, version, holdfast_fence, wake_ns,
    idempotency_key, submitted_by, trace, labels, rerun_of
FROM plane_run WHERE id = :id
