-- Contract: a page of runs of all tenants, without their documents, newest first. An empty status or workflow: any.
SELECT id, tenant, workflow, workflow_version, status, risk, created_ns, updated_ns, wake_ns, version, holdfast_fence,
    idempotency_key, submitted_by, trace, labels, rerun_of
FROM plane_run
WHERE (created_ns < :created_ns OR (created_ns = :created_ns AND id < :id))
    AND (:status = '' OR status = :status) AND (:workflow = '' OR workflow = :workflow)
ORDER BY created_ns DESC, id DESC LIMIT :most
