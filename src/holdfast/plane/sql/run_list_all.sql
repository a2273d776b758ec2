-- Contract: a page of outlines of runs of all tenants, newest first. An empty status: any. No outline: it must be made from the
-- document.
SELECT id, tenant, workflow, workflow_version, status, risk, created_ns, updated_ns, wake_ns, version, holdfast_fence,
    idempotency_key, submitted_by, trace, labels, rerun_of, CASE WHEN outlined = version THEN outline END AS outline
FROM plane_run
WHERE (created_ns, id) < (:created_ns, :id) AND (:status = '' OR status = :status)
ORDER BY created_ns DESC, id DESC LIMIT :most
