-- Contract: deletes a finished run.
DELETE FROM plane_run
WHERE id = :run AND status IN ('succeeded', 'failed', 'denied', 'cancelled', 'timed_out')
RETURNING id
