-- Contract: counts a run of the current attempt of a job that its live worker nacked. Does nothing for a finished
-- attempt. The count is a row in the table of message failures, with a recipient that no group can have, and lives as
-- long as those.
INSERT INTO plane_failure (id, recipient, failures, at_ns)
SELECT job.id || ':' || job.created_ns || ':' || job.attempt, 'given back', 1, :at_ns FROM plane_job AS job
WHERE job.id = :id AND job.attempt = :attempt AND (:made_ns = 0 OR job.created_ns = :made_ns)
    AND job.state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING')
ON CONFLICT (id, recipient) DO UPDATE SET failures = plane_failure.failures + 1, at_ns = excluded.at_ns
