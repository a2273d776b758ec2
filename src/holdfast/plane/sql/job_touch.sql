-- Contract: notes a fence with a job that this transaction holds, counts a version, and leaves its state as it is; counted by the
-- caller. `updated_ns` is left alone, so that the time limit of the state goes on. `:pool` is another one than before only for a job
-- that no worker has, which no pool counts.
UPDATE plane_job SET
    version = version + 1, holdfast_fence = :fence, not_before_ns = :not_before_ns, queue = :queue, pool = :pool
WHERE id = :id AND version = :version AND (holdfast_fence IS NULL OR holdfast_fence <= :fence)
