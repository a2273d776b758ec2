-- Contract: a page of outlines of open approvals, oldest first. An empty tenant: all.
--
-- They are found through their jobs, so approvals that lapsed cost nothing. A waiting job has not changed since it was
-- inserted, so the time of its last change is that of the approval.
SELECT plane_approval.job, plane_approval.tenant, gate, status, risk, rule, SUBSTR(message, 1, 2500) AS message, requested_by,
    revision, plane_approval.created_ns, run, step, expires_ns, decided_by, decided_ns, note,
    plane_approval.holdfast_fence, plane_job.state AS job_state
FROM plane_job JOIN plane_approval ON plane_approval.job = plane_job.id
    AND plane_approval.tenant = plane_job.tenant AND plane_approval.created_ns = plane_job.created_ns
WHERE plane_job.state = 'APPROVAL_REQUIRED'
    AND plane_job.state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND plane_approval.status = 'waiting' AND (:tenant = '' OR plane_job.tenant = :tenant)
    AND (plane_job.updated_ns, plane_job.id) > (:created_ns, :job)
ORDER BY plane_job.updated_ns, plane_job.id LIMIT :most
