-- Contract: inserts a run. No row: its id or its idempotency key is taken.
INSERT INTO plane_run (
    id, tenant, scope, workflow, workflow_version, status, risk, document, created_ns, updated_ns, version, wake_ns,
    idempotency_key, submitted_by, trace, labels, rerun_of, outline, outlined, root
) VALUES (
    :id, :tenant, :scope, :workflow, :workflow_version, :status, :risk, :document, :now_ns, :now_ns, 0, :wake_ns,
    :idempotency_key, :submitted_by, :trace, :labels, :rerun_of, :outline, 0, :root
)
ON CONFLICT DO NOTHING
RETURNING *
