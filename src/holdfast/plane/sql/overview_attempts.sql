-- Contract: running attempts, the longest first, with their last progress, and with the number of workers that have started them
-- since a time, without payloads and results.
SELECT job.id, job.tenant, job.topic, job.pool, job.worker, job.attempt, job.created_ns, job.updated_ns, job.timeout_ns,
    progress.at_ns AS progress_ns, progress.note, (
        SELECT COUNT(*) FROM plane_event AS event
        WHERE event.job = job.id AND event.attempt = job.attempt AND event.after = 'RUNNING' AND event.at_ns >= :since_ns
    ) AS starts
FROM plane_job AS job
LEFT JOIN plane_progress AS progress
    ON progress.job = job.id AND progress.made_ns = job.created_ns AND progress.attempt = job.attempt
WHERE job.state = 'RUNNING'
    AND job.state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
ORDER BY job.updated_ns, job.id LIMIT :most
