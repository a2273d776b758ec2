-- Contract: outlines of jobs in one terminal state other than success, newest first, after a cursor. Reads only jobs in
-- that state.
SELECT {outline}
FROM plane_job
WHERE state = :state AND state IN ('FAILED', 'CANCELLED', 'TIMEOUT', 'DENIED', 'OUTPUT_QUARANTINED')
    AND (created_ns, id) < (:created_ns, :id)
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) AND (CAST(:topic AS TEXT) IS NULL OR topic = :topic)
ORDER BY created_ns DESC, id DESC LIMIT :most
