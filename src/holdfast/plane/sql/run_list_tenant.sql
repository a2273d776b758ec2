-- Contract: a page of the runs of a tenant, in outline, newest first. An empty status or workflow: any. No outline:
-- it has to be made from the document.
SELECT id, tenant, workflow, workflow_version, status, risk, created_ns, updated_ns, wake_ns, version, holdfast_fence,
    idempotency_key, submitted_by, trace, labels, rerun_of, CASE WHEN outlined = version THEN outline END AS outline
FROM plane_run
WHERE tenant = :tenant AND (created_ns < :created_ns OR (created_ns = :created_ns AND id < :id))
    AND (:status = '' OR status = :status) AND (:workflow = '' OR workflow = :workflow)
ORDER BY created_ns DESC, id DESC LIMIT :most
