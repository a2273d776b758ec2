-- Contract: a page of outlines of a tenant's runs, newest first. An empty status: any. No outline: it must be made from the
-- document. The tenant is bounded from both sides, see `job_list_topic`.
SELECT id, tenant, workflow, workflow_version, status, risk, created_ns, updated_ns, wake_ns, version, holdfast_fence,
    idempotency_key, submitted_by, trace, labels, rerun_of, CASE WHEN outlined = version THEN outline END AS outline
FROM plane_run
WHERE tenant >= :tenant AND (tenant, created_ns, id) < (:tenant, :created_ns, :id) AND (:status = '' OR status = :status)
ORDER BY tenant DESC, created_ns DESC, id DESC LIMIT :most
