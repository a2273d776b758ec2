-- Contract: the highest fence that has written a run.
SELECT holdfast_fence FROM plane_run WHERE id = :id
