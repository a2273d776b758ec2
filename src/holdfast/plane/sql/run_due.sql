-- Contract: runs that are due, the longest overdue first, after a cursor.
SELECT id, risk, wake_ns FROM plane_run
WHERE wake_ns <= :now_ns AND (wake_ns > :wake_ns OR (wake_ns = :wake_ns AND id > :id))
ORDER BY wake_ns, id LIMIT :most
