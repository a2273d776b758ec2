-- Contract: inserts the approval of a waiting job. No row: it exists. It replaces the approval of the tenant's earlier job with
-- this id, which has ended.
INSERT INTO plane_approval (
    job, tenant, gate, status, risk, rule, message, request, snapshot, requested_by, revision, created_ns, run, step,
    expires_ns
) VALUES (
    :job, :tenant, :gate, 'waiting', :risk, :rule, :message, :request, :snapshot, :requested_by, 0, :now_ns, :run, :step,
    CAST(:expires_ns AS BIGINT)
)
ON CONFLICT (job, tenant) DO UPDATE SET
    gate = excluded.gate, status = excluded.status, risk = excluded.risk, rule = excluded.rule, message = excluded.message,
    request = excluded.request, snapshot = excluded.snapshot, requested_by = excluded.requested_by, revision = 0,
    created_ns = excluded.created_ns, run = excluded.run, step = excluded.step, expires_ns = excluded.expires_ns,
    decided_by = NULL, decided_ns = NULL, note = NULL, holdfast_fence = NULL
WHERE plane_approval.created_ns <> excluded.created_ns
RETURNING *
