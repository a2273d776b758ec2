-- Contract: a page of a tenant's approval outlines, newest first. An open approval whose job no longer waits, or is not
-- stored, has lapsed. The tenant is bounded from both sides, see `job_list_topic`.
SELECT plane_approval.job, plane_approval.tenant, gate, status, risk, rule, SUBSTR(message, 1, 2500) AS message, requested_by,
    revision, plane_approval.created_ns, run, step, expires_ns, decided_by, decided_ns, note,
    plane_approval.holdfast_fence, plane_job.state AS job_state
FROM plane_approval LEFT JOIN plane_job ON plane_job.id = plane_approval.job
    AND plane_job.tenant = plane_approval.tenant AND plane_job.created_ns = plane_approval.created_ns
WHERE plane_approval.tenant >= :tenant
    AND (plane_approval.tenant, plane_approval.created_ns, plane_approval.job) < (:tenant, :created_ns, :job)
ORDER BY plane_approval.tenant DESC, plane_approval.created_ns DESC, plane_approval.job DESC LIMIT :most
