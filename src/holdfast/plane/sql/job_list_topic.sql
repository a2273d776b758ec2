-- Contract: outlines of jobs of one topic, newest first, after a cursor. Reads only jobs of that topic. The topic is
-- bounded from both sides and not compared with `=`, because a generic plan of Postgres would use the index of all
-- jobs.
SELECT {outline}
FROM plane_job
WHERE topic >= :topic AND (topic, created_ns, id) < (:topic, :created_ns, :id)
    AND (CAST(:tenant AS TEXT) IS NULL OR tenant = :tenant) AND (CAST(:state AS TEXT) IS NULL OR state = :state)
ORDER BY topic DESC, created_ns DESC, id DESC LIMIT :most
