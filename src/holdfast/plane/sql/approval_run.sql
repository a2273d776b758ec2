-- Contract: how the run is whose step a gate is.
SELECT status FROM plane_run WHERE id = :run
