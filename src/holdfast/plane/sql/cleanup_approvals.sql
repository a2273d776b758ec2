-- Contract: deletes at most `:most` approvals that were requested before `:before_ns` and whose job is not stored any
-- more, oldest first, and returns the jobs.
DELETE FROM plane_approval WHERE (job, tenant) IN (
    SELECT asked.job, asked.tenant FROM plane_approval AS asked
    WHERE asked.created_ns < :before_ns AND NOT EXISTS (
        SELECT 1 FROM plane_job
        WHERE plane_job.id = asked.job AND plane_job.tenant = asked.tenant AND plane_job.created_ns = asked.created_ns
    )
    ORDER BY asked.created_ns, asked.job LIMIT :most
)
RETURNING job
