-- Contract: the risk class of one run.
SELECT risk FROM plane_run WHERE id = :id
