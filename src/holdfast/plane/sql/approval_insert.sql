-- Contract: notes that a job waits for a person; no row: it is noted already.
INSERT INTO plane_approval (
    job, tenant, gate, status, risk, rule, message, request, snapshot, requested_by, revision, created_ns, run, step,
    expires_ns
) VALUES (
    :job, :tenant, :gate, 'waiting', :risk, :rule, :message, :request, :snapshot, :requested_by, 0, :now_ns, :run, :step,
    CAST(:expires_ns AS BIGINT)
)
ON CONFLICT DO NOTHING
RETURNING *
