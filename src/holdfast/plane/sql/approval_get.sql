-- Contract: the approval of a job, of one tenant, or of any (NULL): then the newest, should several have used the id. With the
-- state of its job; NULL: that is not stored any more.
SELECT plane_approval.*, plane_job.state AS job_state
FROM plane_approval LEFT JOIN plane_job ON plane_job.id = plane_approval.job
    AND plane_job.tenant = plane_approval.tenant AND plane_job.created_ns = plane_approval.created_ns
WHERE plane_approval.job = :job AND (CAST(:tenant AS TEXT) IS NULL OR plane_approval.tenant = :tenant)
ORDER BY plane_approval.created_ns DESC LIMIT 1
