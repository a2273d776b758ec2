-- Contract: how many jobs `reconcile_overdue` would find from the beginning.
SELECT COUNT(*) AS jobs FROM plane_job
WHERE state = :state AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND updated_ns <= :until_ns
    AND (state <> 'RETRYING' OR code IS NULL OR code <> 'taken_back')
    AND CASE WHEN state = 'RUNNING' AND timeout_ns IS NOT NULL THEN timeout_ns ELSE CAST(:limit_ns AS BIGINT) END
        < :now_ns - CASE WHEN state = 'RETRYING' AND not_before_ns > updated_ns THEN not_before_ns ELSE updated_ns END
