-- Contract: jobs whose deadline is not after `:until_ns`, oldest deadline first, after a place in that order.
SELECT * FROM plane_job
WHERE deadline_ns IS NOT NULL AND (deadline_ns, id) > (:deadline_ns, :id) AND deadline_ns <= :until_ns
ORDER BY deadline_ns, id LIMIT :most
