-- Contract: writes a job that this transaction holds; counted by the caller: one that is not written met a newer fence.
UPDATE plane_job SET
    state = :state, attempt = :attempt, version = version + 1, holdfast_fence = :fence, updated_ns = :now_ns,
    reason = :reason, code = :code, result = :result, worker = :worker, run_fence = :run_fence,
    not_before_ns = :not_before_ns, queue = :queue, deadline_ns = :deadline_ns, pool = :pool
WHERE id = :id AND version = :version AND (holdfast_fence IS NULL OR holdfast_fence <= :fence)
