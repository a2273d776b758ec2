-- Contract: one run.
SELECT * FROM plane_run WHERE id = :id
