-- Contract: the state of one job.
SELECT state FROM plane_job WHERE id = :id
