-- Contract: of the `:most` newest jobs, and of as many with workers in an attempt after the first, those that changed
-- since `:since_ns`: their attempts, and how often their history contains a dispatch and an end. A quarantined success
-- has not ended twice. Reads only these jobs and their histories.
SELECT id, state, attempt, max_attempts, updated_ns,
    (SELECT COUNT(*) FROM plane_event WHERE job = looked.id AND after = 'DISPATCHED') AS dispatches,
    (SELECT COUNT(*) FROM plane_event
        WHERE job = looked.id AND after IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED')) AS ends
FROM (
    SELECT id, state, attempt, max_attempts, updated_ns FROM (
        SELECT id, state, attempt, max_attempts, updated_ns FROM plane_job
        ORDER BY created_ns DESC, id DESC LIMIT :most
    ) AS newest
    UNION
    SELECT id, state, attempt, max_attempts, updated_ns FROM (
        SELECT id, state, attempt, max_attempts, updated_ns FROM plane_job
        WHERE state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
            AND updated_ns >= :since_ns AND attempt > 1
        ORDER BY updated_ns DESC, id DESC LIMIT :most
    ) AS live
) AS looked
WHERE updated_ns >= :since_ns
