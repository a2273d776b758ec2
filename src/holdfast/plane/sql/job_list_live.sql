-- Contract: outlines of jobs in one state that is not terminal, newest first, after a cursor. Reads only unfinished
-- jobs in that state: MATERIALIZED keeps Postgres from the index of all jobs.
WITH live AS MATERIALIZED (
    SELECT {outline}
    FROM plane_job
    WHERE state = :state AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
        AND (created_ns, id) < (:created_ns, :id)
        AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) AND (CAST(:topic AS TEXT) IS NULL OR topic = :topic)
)
SELECT * FROM live ORDER BY created_ns DESC, id DESC LIMIT :most
