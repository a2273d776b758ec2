-- Contract: jobs of all tenants, in outline, newest first, after a place (`:created_ns`, `:id`) in that order.
SELECT {outline}
FROM plane_job
WHERE (created_ns, id) < (:created_ns, :id)
    AND (CAST(:state AS TEXT) IS NULL OR state = :state)
ORDER BY created_ns DESC, id DESC LIMIT :most
