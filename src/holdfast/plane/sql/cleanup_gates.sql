-- Contract: forgets what steps of a run asked somebody, and returns the jobs.
DELETE FROM plane_approval WHERE run = :run RETURNING job
