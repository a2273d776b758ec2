-- Contract: deletes the approvals of the steps of a run, and returns their jobs.
DELETE FROM plane_approval WHERE run = :run RETURNING job
