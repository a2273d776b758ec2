-- Contract: jobs of a pool that were handed to its workers at `:until_ns` or before and that none of them is known to have begun, the
-- last ones first: they are the last that would be begun. `:topic`: only of this one, unless it is NULL.
SELECT id FROM plane_job
WHERE state = 'DISPATCHED' AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND updated_ns <= :until_ns AND pool = :pool
    AND topic = COALESCE(CAST(:topic AS TEXT), topic)
ORDER BY updated_ns DESC, id DESC LIMIT :most
