-- Contract: unfinished jobs whose time limit had passed at `:now_ns`, oldest change first, after a cursor. `:limit_ns`
-- is the limit of the state, unless a running job has its own. The limit of a delayed retry begins when it is due; a
-- reclaimed job has none. No job that changed after `:until_ns` can be among them.
SELECT id, tenant, topic, state, updated_ns FROM plane_job
WHERE state = :state AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND (updated_ns, id) > (:updated_ns, :id) AND updated_ns <= :until_ns
    AND (state <> 'RETRYING' OR code IS NULL OR code <> 'taken_back')
    AND CASE WHEN state = 'RUNNING' AND timeout_ns IS NOT NULL THEN timeout_ns ELSE CAST(:limit_ns AS BIGINT) END
        < :now_ns - CASE WHEN state = 'RETRYING' AND not_before_ns > updated_ns THEN not_before_ns ELSE updated_ns END
ORDER BY updated_ns, id LIMIT :most
