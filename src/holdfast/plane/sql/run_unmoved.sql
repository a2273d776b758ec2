-- Contract: runs that are not over and were not written since `:until_ns`, the longest untouched first. Of those that wait
-- for a person only such whose own time had come before `:until_ns` as well. Reads the live ones.
SELECT id, updated_ns, wake_ns FROM plane_run
WHERE status IN ('pending', 'running', 'waiting') AND updated_ns <= :until_ns
    AND (status <> 'waiting' OR wake_ns <= :until_ns)
ORDER BY updated_ns, id LIMIT :most
