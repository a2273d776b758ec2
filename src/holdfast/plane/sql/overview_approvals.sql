-- Contract: open approvals, oldest first, without their messages. They are found through their jobs.
SELECT approval.job, approval.tenant, approval.requested_by, approval.run, approval.expires_ns, job.updated_ns
FROM plane_job AS job JOIN plane_approval AS approval
    ON approval.job = job.id AND approval.tenant = job.tenant AND approval.created_ns = job.created_ns
WHERE job.state = 'APPROVAL_REQUIRED'
    AND job.state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND approval.status = 'waiting'
ORDER BY job.updated_ns, job.id LIMIT :most
