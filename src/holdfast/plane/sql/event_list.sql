-- Contract: the history of a job, oldest first.
SELECT * FROM plane_event WHERE job = :job ORDER BY version, step
