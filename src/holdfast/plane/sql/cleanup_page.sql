-- Contract: the cursors of the next `:most` jobs from before `:before_ns`, oldest first, after a cursor.
SELECT created_ns, id FROM plane_job
WHERE (created_ns, id) > (:created_ns, :id) AND created_ns < :before_ns
ORDER BY created_ns, id LIMIT :most
