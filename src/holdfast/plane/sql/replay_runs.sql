-- Contract: how often the attempt that a job is at was begun, as far as the scheduler has heard of it, and how often it was given
-- back after that.
SELECT (
    SELECT COUNT(*) FROM plane_event AS event
    WHERE event.job = job.id AND event.after = 'RUNNING' AND event.attempt = job.attempt
) AS begun, COALESCE((
    SELECT kept.failures FROM plane_failure AS kept
    WHERE kept.id = job.id || ':' || job.created_ns || ':' || job.attempt AND kept.recipient = 'given back'
), 0) AS given_back
FROM plane_job AS job WHERE job.id = :id
