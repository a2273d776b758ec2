-- Contract: deletes the history of one job.
DELETE FROM plane_event WHERE job = :job
