-- Contract: jobs of all tenants, as outlines, newest first, after a cursor (`:created_ns`, `:id`).
SELECT {outline}
FROM plane_job
WHERE (created_ns, id) < (:created_ns, :id)
    AND (CAST(:state AS TEXT) IS NULL OR state = :state)
ORDER BY created_ns DESC, id DESC LIMIT :most
