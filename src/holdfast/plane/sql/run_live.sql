-- Contract: runs that are not over and were not written since a time, the longest untouched first, after a place.
SELECT id, risk, updated_ns FROM plane_run
WHERE status IN ('pending', 'running', 'waiting') AND updated_ns <= :until_ns
    AND (updated_ns > :updated_ns OR (updated_ns = :updated_ns AND id > :id))
ORDER BY updated_ns, id LIMIT :most
