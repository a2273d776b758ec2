-- Contract: outlines of runs of one workflow, newest first, after a cursor. An empty status: any. No outline: it must be made
-- from the document. Reads only runs of that workflow. The workflow is bounded from both sides and not compared with `=`,
-- because a generic plan of Postgres would use the index of all runs.
SELECT id, tenant, workflow, workflow_version, status, risk, created_ns, updated_ns, wake_ns, version, holdfast_fence,
    idempotency_key, submitted_by, trace, labels, rerun_of, CASE WHEN outlined = version THEN outline END AS outline
FROM plane_run
WHERE workflow >= :workflow AND (workflow, created_ns, id) < (:workflow, :created_ns, :id)
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) AND (:status = '' OR status = :status)
ORDER BY workflow DESC, created_ns DESC, id DESC LIMIT :most
