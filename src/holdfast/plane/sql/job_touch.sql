-- Contract: notes a fence with a job and counts a version, and leaves its state as it is; no row: it was written since.
-- `updated_ns` is left alone, so that the time limit of the state goes on.
UPDATE plane_job SET version = version + 1, holdfast_fence = :fence, not_before_ns = :not_before_ns
WHERE id = :id AND version = :version AND (holdfast_fence IS NULL OR holdfast_fence <= :fence)
RETURNING *
