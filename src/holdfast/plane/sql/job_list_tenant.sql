-- Contract: jobs of one tenant, newest first, that come after a place (`:created_ns`, `:id`) in that order.
SELECT * FROM plane_job
WHERE tenant = :tenant AND (created_ns, id) < (:created_ns, :id)
    AND (CAST(:state AS TEXT) IS NULL OR state = :state) AND (CAST(:topic AS TEXT) IS NULL OR topic = :topic)
ORDER BY created_ns DESC, id DESC LIMIT :most
