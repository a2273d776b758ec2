-- Contract: outlines of jobs in one state that is not terminal, latest change first, with their reported progress.
-- Reads only unfinished jobs.
SELECT job.id, job.tenant, job.topic, job.pool, job.state, job.attempt, job.max_attempts, job.created_ns, job.updated_ns,
    job.version, job.holdfast_fence, job.run_fence, job.worker, job.reason, progress.fraction, progress.note
FROM plane_job AS job
LEFT JOIN plane_progress AS progress
    ON progress.job = job.id AND progress.made_ns = job.created_ns AND progress.attempt = job.attempt
WHERE job.state = :state
    AND job.state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND (CAST(:tenant AS TEXT) IS NULL OR job.tenant = :tenant)
ORDER BY job.updated_ns DESC, job.id DESC LIMIT :most
