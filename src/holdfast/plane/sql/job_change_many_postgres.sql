-- Contract: writes jobs that this transaction holds, all in one statement; `rows` is a JSON array of objects. Returns one row
-- for each job that was written: one that is missing met a newer fence.
UPDATE plane_job AS job SET
    state = row.state, attempt = row.attempt, version = job.version + 1, holdfast_fence = row.fence,
    updated_ns = row.now_ns, reason = row.reason, code = row.code, result = row.result, worker = row.worker,
    run_fence = row.run_fence, not_before_ns = row.not_before_ns, queue = row.queue, deadline_ns = row.deadline_ns,
    pool = row.pool
FROM json_to_recordset(CAST(:rows AS json)) AS row (
    id TEXT, version BIGINT, fence BIGINT, state TEXT, attempt BIGINT, now_ns BIGINT, reason TEXT, code TEXT,
    result TEXT, worker TEXT, run_fence BIGINT, not_before_ns BIGINT, queue TEXT, deadline_ns BIGINT, pool TEXT
)
WHERE job.id = row.id AND job.version = row.version
    AND (job.holdfast_fence IS NULL OR job.holdfast_fence <= row.fence)
RETURNING 1 AS done
