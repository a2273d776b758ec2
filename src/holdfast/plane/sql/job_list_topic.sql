-- Contract: jobs of one topic, newest first, after a place in that order, in outline. Reads those of that topic.
-- The topic is bounded from both sides, and not compared with `=`: a generic plan of Postgres would take the index of all jobs.
SELECT id, tenant, topic, pool, state, priority, attempt, max_attempts, created_ns, updated_ns, version, holdfast_fence,
    run_fence, worker, reason, code, idempotency_key, timeout_ns, deadline_ns, not_before_ns, submitted_by, trace, labels
FROM plane_job
WHERE topic >= :topic AND (topic, created_ns, id) < (:topic, :created_ns, :id)
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) AND (CAST(:state AS TEXT) IS NULL OR state = :state)
ORDER BY topic DESC, created_ns DESC, id DESC LIMIT :most
