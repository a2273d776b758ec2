-- Contract: of the `:most` newest jobs, and of as many that are at work in a later attempt than their first, those that
-- changed since `:since_ns`: how many attempts they have had, and how often their history says that they were handed to
-- workers and that they ended. A success whose output turned out to be unfit has not ended twice. Reads the newest, the
-- live ones, and their histories; never all that is stored.
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
