-- Contract: jobs of one topic, newest first, after a place in that order, in outline. Reads those of that topic.
-- The topic is bounded from both sides, and not compared with `=`: a generic plan of Postgres would take the index of all jobs.
SELECT {outline}
FROM plane_job
WHERE topic >= :topic AND (topic, created_ns, id) < (:topic, :created_ns, :id)
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) AND (CAST(:state AS TEXT) IS NULL OR state = :state)
ORDER BY topic DESC, created_ns DESC, id DESC LIMIT :most
