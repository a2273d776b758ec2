-- Contract: jobs in a state that is not over, unchanged since `:until_ns`, oldest change first, after a place in that
-- order. What the loops read, page by page.
SELECT * FROM plane_job
WHERE state = :state AND state IN ('PENDING', 'APPROVAL_REQUIRED', 'SCHEDULED', 'DISPATCHED', 'RUNNING', 'RETRYING')
    AND (updated_ns, id) > (:updated_ns, :id) AND updated_ns <= :until_ns
ORDER BY updated_ns, id LIMIT :most
