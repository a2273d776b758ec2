-- Contract: writes a job that was entered under exactly this fence and has not been written since; no row: it was.
UPDATE plane_job SET
    state = :state, attempt = :attempt, version = version + 1, updated_ns = :now_ns, reason = :reason, code = :code,
    result = :result, worker = :worker, run_fence = :run_fence, not_before_ns = :not_before_ns,
    deadline_ns = :deadline_ns, pool = :pool
WHERE id = :id AND holdfast_fence = :fence AND version = :version
RETURNING *
