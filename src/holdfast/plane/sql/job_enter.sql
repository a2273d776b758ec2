-- Contract: registers a fence with a job and reads it, in one step; no row: a newer fence was here, or no such job.
UPDATE plane_job SET holdfast_fence = :fence
WHERE id = :id AND (holdfast_fence IS NULL OR holdfast_fence <= :fence)
RETURNING *
