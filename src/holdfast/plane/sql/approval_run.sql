-- Contract: the status of the run that a gate belongs to.
SELECT status FROM plane_run WHERE id = :run
