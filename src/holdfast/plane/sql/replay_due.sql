-- Contract: delayed jobs that were due at `:until_ns` or before and were not changed since, longest due first, after a
-- cursor. The condition is that of the index plane_job_due, so it reads nothing else.
SELECT id, tenant, topic, pool, attempt, not_before_ns FROM plane_job
WHERE state IN ('PENDING', 'RETRYING') AND queue = 'delayed'
    AND (not_before_ns, id) > (:not_before_ns, :id) AND not_before_ns <= :until_ns
ORDER BY not_before_ns, id LIMIT :most
