-- Contract: one job.
SELECT * FROM plane_job WHERE id = :id
