-- Contract: deletes one finished job that was created at that time, and returns its id; no row: it does not exist, or
-- has not finished.
DELETE FROM plane_job WHERE id = :id AND created_ns = :created_ns
    AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED', 'OUTPUT_QUARANTINED')
RETURNING id
