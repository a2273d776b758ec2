-- Contract: forgets one job that is over, made at that time, and returns its id; no row: there is none, or it is not over.
DELETE FROM plane_job WHERE id = :id AND created_ns = :created_ns
    AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED', 'OUTPUT_QUARANTINED')
RETURNING id
