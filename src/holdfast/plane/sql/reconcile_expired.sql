-- Contract: unfinished jobs whose deadline is not after `:now_ns`, oldest deadline first, after a cursor.
SELECT id, tenant, topic, state, deadline_ns FROM plane_job
WHERE deadline_ns IS NOT NULL AND (deadline_ns, id) > (:deadline_ns, :id) AND deadline_ns <= :now_ns
ORDER BY deadline_ns, id LIMIT :most
