-- Contract: the approval of a job with the job's state (NULL: the job is no longer stored), for one tenant. Tenant NULL:
-- the newest approval of that job id.
SELECT plane_approval.*, plane_job.state AS job_state
FROM plane_approval LEFT JOIN plane_job ON plane_job.id = plane_approval.job
    AND plane_job.tenant = plane_approval.tenant AND plane_job.created_ns = plane_approval.created_ns
WHERE plane_approval.job = :job AND (CAST(:tenant AS TEXT) IS NULL OR plane_approval.tenant = :tenant)
ORDER BY plane_approval.created_ns DESC LIMIT 1
