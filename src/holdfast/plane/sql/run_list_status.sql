-- Contract: runs of one status other than success, newest first, after a place in that order, in outline. An empty workflow: any.
-- No outline: it has to be made from the document. Reads the runs of that status.
-- The status is bounded from both sides, and not compared with `=`: a generic plan of Postgres would take the index of all runs.
SELECT id, tenant, workflow, workflow_version, status, risk, created_ns, updated_ns, wake_ns, version, holdfast_fence,
    idempotency_key, submitted_by, trace, labels, rerun_of, CASE WHEN outlined = version THEN outline END AS outline
FROM plane_run
WHERE status <> 'succeeded' AND status >= :status AND (status, created_ns, id) < (:status, :created_ns, :id)
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) AND (:workflow = '' OR workflow = :workflow)
ORDER BY status DESC, created_ns DESC, id DESC LIMIT :most
