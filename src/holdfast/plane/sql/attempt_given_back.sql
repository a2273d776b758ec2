-- Contract: counts that a run of the attempt that a job is at was nacked by its worker, which is alive; of an attempt
-- that is over, nothing. Kept beside the failures of messages, as long as those, under a recipient that no group is named like.
INSERT INTO plane_failure (id, recipient, failures, at_ns)
SELECT job.id || ':' || job.created_ns || ':' || job.attempt, 'given back', 1, :at_ns FROM plane_job AS job
WHERE job.id = :id AND job.attempt = :attempt AND (:made_ns = 0 OR job.created_ns = :made_ns)
    AND job.state IN ('SCHEDULED', 'DISPATCHED', 'RUNNING')
ON CONFLICT (id, recipient) DO UPDATE SET failures = plane_failure.failures + 1, at_ns = excluded.at_ns
