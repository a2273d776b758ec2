-- Contract: forgets at most `:most` approvals that were asked for before `:before_ns` and whose job is not stored any more, the
-- oldest first, and returns the jobs.
DELETE FROM plane_approval WHERE job IN (
    SELECT asked.job FROM plane_approval AS asked
    WHERE asked.created_ns < :before_ns AND NOT EXISTS (SELECT 1 FROM plane_job WHERE plane_job.id = asked.job)
    ORDER BY asked.created_ns, asked.job LIMIT :most
)
RETURNING job
