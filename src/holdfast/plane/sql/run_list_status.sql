-- Contract: outlines of runs with one status other than success, newest first, after a cursor. An empty workflow: any. No
-- outline: it must be made from the document. Reads only runs with that status. The status is bounded from both sides and
-- not compared with `=`, because a generic plan of Postgres would use the index of all runs.
SELECT id, tenant, workflow, workflow_version, status, risk, created_ns, updated_ns, wake_ns, version, holdfast_fence,
    idempotency_key, submitted_by, trace, labels, rerun_of, CASE WHEN outlined = version THEN outline END AS outline
FROM plane_run
WHERE status <> 'succeeded' AND status >= :status AND (status, created_ns, id) < (:status, :created_ns, :id)
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) AND (:workflow = '' OR workflow = :workflow)
ORDER BY status DESC, created_ns DESC, id DESC LIMIT :most
