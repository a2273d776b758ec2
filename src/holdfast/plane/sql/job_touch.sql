-- Contract: stores a fence with a job that this transaction has locked, and increments its version. The state stays; so
-- does `updated_ns`, so that the time limit of the state continues. The caller does the counting. `:pool` changes only
-- for a job that no worker has, which no pool counts.
UPDATE plane_job SET
    version = version + 1, holdfast_fence = :fence, not_before_ns = :not_before_ns, queue = :queue, pool = :pool
WHERE id = :id AND version = :version AND (holdfast_fence IS NULL OR holdfast_fence <= :fence)
